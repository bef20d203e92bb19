// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/dataplane"
)

// foreignElements are such as another version, or somebody with nft, may have
// left for the ServicePort web.
func foreignElements(layout Layout) map[string][]op {
	web, stranger := vipOf(webVIP), vipOf("172.30.0.77:7/udp")
	add := func(e element) op { return op{element: e} }
	withVerdict := func(e element, verdict string) element {
		e.verdict = verdict
		return e
	}
	endpoint := netip.MustParseAddrPort("10.180.9.9:9")
	stray := hairpin{endpoint, dataplane.TCP}.element()
	crossed := stray
	crossed.key = "\x0a\xb4\x00\x02" + stray.key[4:]
	return map[string][]op{
		"nothing": nil,
		"verdict for nobody": {
			add(serviceElement(stranger, 3)), add(layout.row(stranger, clusterScope, 0, endpoint)), add(clusterIPElement(stranger.Addr)),
		},
		"verdict to another chain": {
			{element: serviceElement(web, 3), delete: true}, add(withVerdict(serviceElement(web, 3), gotoVerdict(missedChain))),
		},
		"verdict to drop": {
			{element: serviceElement(web, 3), delete: true}, add(withVerdict(serviceElement(web, 3), dropVerdict)),
		},
		"no verdict": {
			{element: serviceElement(web, 3), delete: true},
		},
		"rejected although there are endpoints": {add(rejectElement(web))},
		"dropped although there are endpoints":  {add(withVerdict(rejectElement(web), dropVerdict))},
		"dropped for nobody":                    {add(withVerdict(rejectElement(stranger), dropVerdict))},
		"row of another endpoint": {
			{element: layout.row(web, clusterScope, 1, netip.AddrPort{}), delete: true}, add(layout.row(web, clusterScope, 1, endpoint)),
		},
		"row that is not there": {{element: layout.row(web, clusterScope, 1, netip.AddrPort{}), delete: true}},
		"two rows of one endpoint": {
			{element: layout.row(web, clusterScope, 1, netip.AddrPort{}), delete: true}, add(layout.row(web, clusterScope, 1, netip.MustParseAddrPort("10.180.1.1:8080"))),
		},
		"row far away":             {add(layout.row(web, clusterScope, 4000, endpoint))},
		"row of local endpoints":   {add(layout.row(web, localScope, 0, endpoint))},
		"hairpin of nobody":        {add(stray)},
		"hairpin of two addresses": {add(crossed)},
		"cluster IP of nobody":     {add(clusterIPElement(stranger.Addr))},
		"cluster IP not there":     {{element: clusterIPElement(web.Addr), delete: true}},
	}
}

func TestResetRepairsElements(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		for name, ops := range foreignElements(layout) {
			for _, batch := range []int{1, 4000} {
				t.Run(name, func(t *testing.T) {
					state := stateOf(dataplane.Settings{}, servicePort("web", webVIP, append(remote(0, 2), "+10.180.0.1:8080")...))
					r := newRig(t, Options{Layout: layout, BatchElements: batch}, state.ServicePorts[servicePort("web", webVIP).Key])
					want := dumpOf(r.fake)
					if err := r.fake.apply(t.Context(), families()[0], ops); err != nil {
						t.Fatalf("prepare: %v", err)
					}
					report := mustReset(t, r.Syncer, state)
					for !report.Due.IsZero() {
						r.clock.time = report.Due
						report = mustSync(t, r.Syncer, dataplane.Update{})
					}
					if diff := cmp.Diff(want, dumpOf(r.fake)); diff != "" {
						t.Errorf("tables (-before +repaired):\n%s", diff)
					}
					if got := elementsIn(r.fake); report.Programmed.Elements != got || report.Programmed.Endpoints != 3 {
						t.Errorf("report has %d elements and %d endpoints, the kernel %d and 3", report.Programmed.Elements, report.Programmed.Endpoints, got)
					}
				})
			}
		}
	})
}

func TestVerifyNamesDifferences(t *testing.T) {
	state := stateOf(dataplane.Settings{}, servicePort("web", webVIP, append(remote(0, 2), "+10.180.0.1:8080")...))
	want := map[string][]string{
		"nothing":                               nil,
		"row of another endpoint":               {"missing element in ip veridict endpoints-tcp: 172.30.0.1 . 80 . 1 : 10.180.1.2 . 8080", "surplus element in ip veridict endpoints-tcp: 172.30.0.1 . 80 . 1 : 10.180.9.9 . 9"},
		"verdict to drop":                       {"different element in ip veridict service-ips: 172.30.0.1 . tcp . 80 : goto cluster-3 (found: drop)"},
		"no verdict":                            {"missing element in ip veridict service-ips: 172.30.0.1 . tcp . 80 : goto cluster-3"},
		"dropped for nobody":                    {"surplus element in ip veridict no-endpoint-services: 172.30.0.77 . udp . 7 : drop"},
		"hairpin of nobody":                     {"surplus element in ip veridict hairpin-connections: 10.180.9.9 . 10.180.9.9 . tcp . 9"},
		"cluster IP not there":                  {"missing element in ip veridict cluster-ips: 172.30.0.1"},
		"row far away":                          {"surplus element in ip veridict endpoints-tcp: 172.30.0.1 . 80 . 4000 : 10.180.9.9 . 9"},
		"rejected although there are endpoints": {"surplus element in ip veridict no-endpoint-services: 172.30.0.1 . tcp . 80 : goto reject-chain"},
	}
	for name, lines := range want {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{}, state.ServicePorts[servicePort("web", webVIP).Key])
			f := families()[0]
			if err := r.fake.apply(t.Context(), f, foreignElements(MarkFree)[name]); err != nil {
				t.Fatalf("prepare: %v", err)
			}
			v := verifierOf(r.fake, MarkFree, f, state)
			found, err := r.fake.objects(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			if err := v.sets(t.Context(), found); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range v.list {
				got = append(got, d.String())
			}
			if diff := cmp.Diff(lines, got); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
		})
	}
}

// verifierOf returns a verifier of the fake's sets.
func verifierOf(fake *Fake, layout Layout, f family, state dataplane.State) *verifier {
	v := &verifier{
		kernel: fake, family: f, layout: layout, ruleset: newRuleset(f, layout, &state.Settings), settings: &state.Settings,
		ports: ofFamily(sorted(state), f),
	}
	return v
}
