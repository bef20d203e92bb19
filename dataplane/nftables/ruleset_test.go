// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/knftables"

	"github.com/veridict/veridict/dataplane"
)

var update = flag.Bool("update", false, "write the golden files of testdata anew")

// golden compares got with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; -update writes the golden files", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// detectors are all ways to recognise pods, by the name of their golden file.
func detectors() map[string]dataplane.Settings {
	with := func(detector dataplane.LocalDetector) dataplane.Settings {
		return dataplane.Settings{ServiceCIDRs: serviceCIDRs, LocalDetector: detector}
	}
	return map[string]dataplane.Settings{
		"none":           {},
		"cidr":           with(dataplane.LocalDetector{CIDRs: podCIDRs}),
		"bridge":         with(dataplane.LocalDetector{Interface: "cbr0"}),
		"prefix":         with(dataplane.LocalDetector{InterfacePrefix: "veth"}),
		"masquerade-all": {ServiceCIDRs: serviceCIDRs[:1], LocalDetector: dataplane.LocalDetector{CIDRs: podCIDRs}, MasqueradeAll: true},
	}
}

func TestRenderGolden(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		for name, settings := range detectors() {
			t.Run(name, func(t *testing.T) {
				var text bytes.Buffer
				if err := Render(&text, Options{Layout: layout, KernelRelease: "6.1"}, stateOf(settings, flowServicePorts()...)); err != nil {
					t.Fatalf("render: %v", err)
				}
				golden(t, string(layout)+"-"+name+".nft", text.Bytes())
			})
		}
	})
}

// fullServicePorts have something of everything, in both families.
func fullServicePorts() []dataplane.ServicePort {
	var ports []dataplane.ServicePort
	for _, f := range families() {
		addr := func(v4, v6 string) netip.Addr {
			if f.id == dataplane.IPv6 {
				return netip.MustParseAddr(v6)
			}
			return netip.MustParseAddr(v4)
		}
		near := dataplane.Endpoint{Addr: netip.AddrPortFrom(addr("10.180.0.1", "fd00:180::1"), 8080), Local: true}
		far := dataplane.Endpoint{Addr: netip.AddrPortFrom(addr("10.180.1.1", "fd00:180:1::1"), 8080), Weight: 2}
		key := func(name string, p dataplane.Protocol) dataplane.ServicePortKey {
			return dataplane.ServicePortKey{ServicePortName: dataplane.ServicePortName{Namespace: "default", Name: name, Protocol: p}, Family: f.id}
		}
		outside := addr("5.6.7.8", "2001:db8:99::1")
		ports = append(
			ports,
			dataplane.ServicePort{
				Key: key("local", dataplane.TCP), ClusterIP: addr("172.30.0.51", "fd00:30::51"), Port: 80, AffinitySeconds: 10800,
				Endpoints: []dataplane.Endpoint{near, far}, LocalEndpoints: []dataplane.Endpoint{near},
				External: &dataplane.External{
					IPs: []netip.Addr{outside}, NodePort: 30080, Local: true, Guarded: []netip.Addr{outside},
					SourceRanges: []netip.Prefix{netip.PrefixFrom(addr("203.0.113.0", "2001:db8:1::"), 24)},
				},
			},
			dataplane.ServicePort{
				Key: key("hash", dataplane.UDP), ClusterIP: addr("172.30.0.52", "fd00:30::52"), Port: 53, Algorithm: dataplane.SourceHash,
				Endpoints: []dataplane.Endpoint{near, far}, External: &dataplane.External{NodePort: 30053},
			},
			dataplane.ServicePort{
				Key: key("sticky", dataplane.SCTP), ClusterIP: addr("172.30.0.53", "fd00:30::53"), Port: 9, AffinitySeconds: 60,
				InternalLocal: true, Endpoints: []dataplane.Endpoint{near, far}, LocalEndpoints: []dataplane.Endpoint{near},
			},
			dataplane.ServicePort{
				Key: key("elsewhere", dataplane.TCP), ClusterIP: addr("172.30.0.54", "fd00:30::54"), Port: 80,
				InternalLocal: true, Endpoints: []dataplane.Endpoint{far}, External: &dataplane.External{NodePort: 30081, Local: true},
			},
		)
	}
	return ports
}

func TestRenderEverythingGolden(t *testing.T) {
	settings := detectors()["cidr"]
	settings.NodePortAddresses = []netip.Addr{netip.MustParseAddr("192.168.0.2")}
	settings.AllAddresses = []dataplane.Family{dataplane.IPv6}
	settings.Localhost = dataplane.LocalhostProxied
	eachLayout(t, func(t *testing.T, layout Layout) {
		var text bytes.Buffer
		if err := Render(&text, Options{Layout: layout, KernelRelease: "6.18"}, stateOf(settings, fullServicePorts()...)); err != nil {
			t.Fatalf("render: %v", err)
		}
		golden(t, string(layout)+"-everything.nft", text.Bytes())
	})
}

// What Render writes and what a Syncer programs is the same.
func TestRenderIsWhatIsProgrammed(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		settings := detectors()["cidr"]
		fake := NewFake()
		mustReset(t, fake.NewSyncer(Options{Layout: layout}), stateOf(settings, flowServicePorts()...))
		for _, f := range families() {
			table := fake.Table(f.id)
			options := Options{Layout: layout}.withDefaults()
			ruleset := options.ruleset(f, &settings)
			for _, chain := range ruleset.chains {
				var rules []string
				for _, rule := range table.Chains[chain.name].Rules {
					rules = append(rules, rule.Rule)
				}
				if diff := cmp.Diff(chain.rules, rules); diff != "" {
					t.Errorf("%s chain %s (-ruleset +kernel):\n%s", f.ip, chain.name, diff)
				}
			}
			if got, want := len(table.Sets)+len(table.Maps), len(ruleset.sets); got != want {
				t.Errorf("%s: %d sets and maps, want %d", f.ip, got, want)
			}
		}
	})
}

// The lengths that are expected of the kernel are those of the declarations.
func TestShapesFitDeclarations(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		fake := NewFake()
		mustReset(t, fake.NewSyncer(Options{Layout: layout}), stateOf(dataplane.Settings{}))
		for _, f := range families() {
			ruleset := newRuleset(f, layout, &dataplane.Settings{})
			found, err := fake.objects(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			for _, set := range found.sets {
				if !ruleset.accepts(set) {
					t.Errorf("%s set %s: declared as %+v, expected %+v", f.ip, set.name, set, ruleset.shape(ruleset.set(set.name)))
				}
			}
		}
	})
}

// A plain key or a verdict that nft 1.1.7 stores for a declaration by type makes
// nft 1.0.6 crash.
func TestOnlyRowsAreDeclaredByType(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		for _, f := range families() {
			for _, set := range newRuleset(f, layout, &dataplane.Settings{}).sets {
				if (set.typ == "") == (set.typeOf == "") {
					t.Errorf("%s has type %q and typeof %q, want one of them", set.name, set.typ, set.typeOf)
				}
				if set.typ != "" && set.kind != dataMap {
					t.Errorf("%s is declared by type %q", set.name, set.typ)
				}
			}
		}
	})
}

// Sets and chains of other versions are replaced.
func TestResetRepairsTheStructure(t *testing.T) {
	state := stateOf(detectors()["cidr"], flowServicePorts()...)
	fresh := NewFake()
	mustReset(t, fresh.NewSyncer(Options{}), state)
	cases := map[string]func(tx *knftables.Transaction){
		"nothing there": nil,
		"another table": func(tx *knftables.Transaction) { tx.Add(&knftables.Table{}) },
		"stray chains":  strayChains,
		"another hook":  anotherHook,
		"another shape": anotherShape,
		"shape and strays": func(tx *knftables.Transaction) {
			anotherShape(tx)
			strayChains(tx)
		},
	}
	for name, build := range cases {
		t.Run(name, func(t *testing.T) {
			fake := NewFake()
			for _, f := range families() {
				if build == nil {
					continue
				}
				if err := fake.structure(t.Context(), f, build); err != nil {
					t.Fatalf("prepare: %v", err)
				}
			}
			s := fake.NewSyncer(Options{})
			mustReset(t, s, state)
			if diff := cmp.Diff(dumpOf(fresh), dumpOf(fake)); diff != "" {
				t.Errorf("tables (-fresh +repaired):\n%s", diff)
			}
		})
	}
}

func strayChains(tx *knftables.Transaction) {
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{Name: "old-one"})
	tx.Add(&knftables.Chain{Name: "old-two"})
	tx.Add(&knftables.Rule{Chain: "old-one", Rule: "goto old-two"})
	tx.Add(&knftables.Set{Name: "old-set", TypeOf: "meta l4proto"})
	tx.Add(&knftables.Map{Name: "old-map", TypeOf: "meta l4proto : verdict"})
}

func anotherHook(tx *knftables.Transaction) {
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{
		Name: "nat-prerouting", Type: new(knftables.FilterType),
		Hook: new(knftables.InputHook), Priority: new(knftables.BaseChainPriority("5")),
	})
	tx.Add(&knftables.Chain{Name: missedChain, Type: new(knftables.FilterType), Hook: new(knftables.InputHook), Priority: new(knftables.BaseChainPriority("6"))})
}

func anotherShape(tx *knftables.Transaction) {
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Map{Name: byKey(serviceMap, false), TypeOf: "meta l4proto : verdict"})
}

// Another layout is taken over without a moment in which connections fail.
func TestResetToTheOtherLayout(t *testing.T) {
	for i, from := range layouts() {
		to := layouts()[1-i]
		state := stateOf(detectors()["cidr"], flowServicePorts()...)
		fake, fresh := NewFake(), NewFake()
		mustReset(t, fake.NewSyncer(Options{Layout: from}), state)
		mustReset(t, fresh.NewSyncer(Options{Layout: to}), state)
		fake.Committed = func(c Commit) {
			if c.Family == dataplane.IPv4 {
				runFlows(t, fake, []flow{{
					name: "from pod", from: "10.180.0.9@veth9", to: "172.30.0.41:80/tcp",
					want: []string{"10.180.0.1:8080", "10.180.1.1:8080"},
				}})
			}
		}
		mustReset(t, fake.NewSyncer(Options{Layout: to}), state)
		if diff := cmp.Diff(dumpOf(fresh), dumpOf(fake)); diff != "" {
			t.Errorf("%s to %s (-fresh +switched):\n%s", from, to, diff)
		}
	}
}
