// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package tracker_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/tracker"
	"github.com/veridict/veridict/dataplane"
)

// A few names and addresses only, so that objects meet each other often.
func anyPort(t *rapid.T) convert.Port {
	return convert.Port{
		Name:     rapid.SampledFrom([]string{"", "a"}).Draw(t, "port name"),
		Protocol: rapid.SampledFrom([]dataplane.Protocol{dataplane.TCP, dataplane.UDP}).Draw(t, "protocol"),
		Port:     rapid.Uint16Range(80, 81).Draw(t, "port"),
		NodePort: rapid.SampledFrom([]uint16{0, 30000, 30001}).Draw(t, "NodePort"),
	}
}

func anyPorts(t *rapid.T) []convert.Port {
	ports := []convert.Port{anyPort(t), anyPort(t)}
	a, b := ports[0], ports[1]
	if a.Protocol == b.Protocol && (a.Name == b.Name || a.Port == b.Port || a.NodePort == b.NodePort && a.NodePort != 0) {
		return ports[:1]
	}
	return ports
}

// anyTraffic asks for addresses that are cluster IPs of others, too.
func anyTraffic(t *rapid.T) *convert.Traffic {
	if rapid.Bool().Draw(t, "plain") {
		return nil
	}
	some := func(label string, texts ...string) []netip.Addr {
		var list []netip.Addr
		for _, text := range texts {
			if rapid.Bool().Draw(t, label+" "+text) {
				list = append(list, addr(text))
			}
		}
		return list
	}
	out := &convert.Traffic{
		ExternalIPs:     some("external IP", "172.30.0.1", "192.0.2.1", "2001:db8::1"),
		LoadBalancerIPs: some("load balancer", "192.0.2.1", "192.0.2.2", "fd00::1"),
		InternalLocal:   rapid.Bool().Draw(t, "internal"),
		ExternalLocal:   rapid.Bool().Draw(t, "external"),
		AffinitySeconds: rapid.SampledFrom([]uint32{0, 60}).Draw(t, "affinity"),
		Algorithm:       rapid.SampledFrom([]dataplane.Algorithm{dataplane.Random, dataplane.SourceHash}).Draw(t, "algorithm"),
		HealthCheckPort: rapid.SampledFrom([]uint16{0, 31000, 31001}).Draw(t, "health check"),
	}
	for _, r := range []string{"0.0.0.0/0", "10.0.0.0/8", "192.168.0.0/16", "fd00::/64"} {
		if rapid.IntRange(0, 3).Draw(t, "range "+r) == 0 {
			out.SourceRanges = append(out.SourceRanges, netip.MustParsePrefix(r))
		}
	}
	for _, zone := range []string{"x", "y"} {
		if weight := rapid.Uint16Range(0, 3).Draw(t, "weight of "+zone); weight > 0 {
			out.ZoneWeights = append(out.ZoneWeights, convert.ZoneWeight{Zone: zone, Weight: weight})
		}
	}
	return out
}

func anyHints(t *rapid.T) *convert.Hints {
	if rapid.IntRange(0, 2).Draw(t, "hints") == 0 {
		return nil
	}
	return &convert.Hints{
		Zones: rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y"}), 1, 2).Draw(t, "zones"),
		Nodes: rapid.SliceOfN(rapid.SampledFrom([]string{"me", "other"}), 0, 2).Draw(t, "nodes"),
	}
}

func anyService(t *rapid.T) convert.Object {
	s := service(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"),
		rapid.SampledFrom([]string{"", "172.30.0.1", "172.30.0.2"}).Draw(t, "IPv4"), anyPorts(t)...)
	s.IPv6 = addr(rapid.SampledFrom([]string{"", "fd00::1"}).Draw(t, "IPv6"))
	s.Created = rapid.Int64Range(0, 2).Draw(t, "created")
	s.Traffic = anyTraffic(t)
	return s
}

func anySlice(t *rapid.T) convert.Object {
	s := slice(fmt.Sprintf("s%d", rapid.IntRange(1, 3).Draw(t, "slice")),
		rapid.SampledFrom([]string{"a", "b", "c", ""}).Draw(t, "service"), anyPort(t))
	s.Ports, s.Weight = anyPorts(t), rapid.Uint16Range(0, 3).Draw(t, "weight")
	addresses := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	if rapid.Bool().Draw(t, "is IPv6") {
		s.Family, addresses = dataplane.IPv6, []string{"fd01::1", "fd01::2"}
	}
	for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
		s.Endpoints = append(s.Endpoints, convert.Endpoint{
			Addr: addr(rapid.SampledFrom(addresses).Draw(t, "address")),
			Conditions: convert.Conditions{
				Ready:       rapid.Bool().Draw(t, "ready"),
				Serving:     rapid.Bool().Draw(t, "serving"),
				Terminating: rapid.Bool().Draw(t, "terminating"),
				Local:       rapid.Bool().Draw(t, "local"),
			},
			Zone:  rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "zone"),
			Hints: anyHints(t),
		})
	}
	return s
}

func anyOther(t *rapid.T) convert.Object {
	prefixes := []convert.Object{
		&convert.ServiceCIDR{Name: "x"}, &convert.Node{Name: "other"}, &convert.Node{Name: "me"},
		&convert.Node{Name: "me", Zone: "x", Addresses: []netip.Addr{addr("10.9.9.9"), addr("fd00::99")}},
		&convert.Node{Name: "me", Zone: "y", Addresses: []netip.Addr{addr("192.168.0.1")}},
	}
	return rapid.SampledFrom(prefixes).Draw(t, "other")
}

func anyChange(t *rapid.T) convert.Change {
	object := rapid.OneOf(rapid.Custom(anyService), rapid.Custom(anySlice), rapid.Custom(anyOther)).Draw(t, "object")
	if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
		return remove(object)[0]
	}
	return upsert(object)[0]
}

func applyUpdate(mirror *dataplane.State, update dataplane.Update) {
	if update.Settings != nil {
		mirror.Settings = *update.Settings
	}
	for _, key := range update.Removed {
		delete(mirror.ServicePorts, key)
	}
	for _, sp := range update.Changed {
		mirror.ServicePorts[sp.Key] = sp
	}
}

// TestRandomChanges says that only the objects count, not how they came, and
// that updates tell the whole story.
func TestRandomChanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		options := tracker.Options{
			NodeName: "me", NodeCIDR: true, MasqueradeAll: true,
			NodePorts: tracker.NodePorts{
				Primary: rapid.Bool().Draw(t, "primary"),
				CIDRs:   rapid.SliceOf(rapid.SampledFrom(nodePortCIDRs())).Draw(t, "NodePort CIDRs"),
			},
		}
		hostAddresses := []netip.Addr{addr("10.9.9.9"), addr("10.9.9.8"), addr("127.0.0.1"), addr("fd00::99")}
		tr := tracker.New(options)
		mirror := dataplane.State{ServicePorts: map[dataplane.ServicePortKey]dataplane.ServicePort{}}
		objects := map[convert.Key]convert.Change{}
		for range rapid.IntRange(1, 8).Draw(t, "batches") {
			batch := rapid.SliceOfN(rapid.Custom(anyChange), 0, 6).Draw(t, "batch")
			tr.Apply(batch)
			for _, change := range batch {
				objects[change.Key] = change
				if change.Object == nil {
					delete(objects, change.Key)
				}
			}
			if rapid.Bool().Draw(t, "host addresses") {
				tr.SetHostAddresses(hostAddresses[rapid.IntRange(0, 3).Draw(t, "less"):])
			}
			if rapid.Bool().Draw(t, "take") {
				applyUpdate(&mirror, tr.Take())
			}
		}
		tr.SetHostAddresses(hostAddresses)
		applyUpdate(&mirror, tr.Take())

		fresh := tracker.New(options)
		fresh.SetHostAddresses(hostAddresses)
		fresh.Apply(slices.Collect(maps.Values(objects)))
		if diff := cmp.Diff(fresh.State(), tr.State(), compareState()); diff != "" {
			t.Fatalf("fed step by step (-fresh +got):\n%s", diff)
		}
		if diff := cmp.Diff(fresh.Problems(), tr.Problems(), compareState()); diff != "" {
			t.Fatalf("problems (-fresh +got):\n%s", diff)
		}
		if diff := cmp.Diff(mirror, tr.State(), compareState()); diff != "" {
			t.Fatalf("updates applied to a mirror (-mirror +state):\n%s", diff)
		}
		if diff := cmp.Diff(fresh.HealthChecks(), tr.HealthChecks()); diff != "" {
			t.Fatalf("health checks (-fresh +got):\n%s", diff)
		}
		checkState(t, tr.State())
	})
}

func nodePortCIDRs() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("0.0.0.0/0"),
		netip.MustParsePrefix("fd00::/64"),
	}
}

// checkState holds the state to what the dataplane may rely on.
func checkState(t *rapid.T, state dataplane.State) {
	type frontend struct {
		family dataplane.Family
		vip    dataplane.VIP
	}
	seen := map[frontend]dataplane.ServicePortKey{}
	for key, sp := range state.ServicePorts {
		for _, vip := range sp.VIPs() {
			f := frontend{key.Family, vip}
			if other, taken := seen[f]; taken {
				t.Fatalf("%s and %s have the same VIP", key, other)
			}
			seen[f] = key
			if !vip.IsNodePort() && dataplane.FamilyOf(vip.Addr) != key.Family {
				t.Fatalf("%s has the VIP %s", key, vip)
			}
		}
		if key != sp.Key || !sp.ClusterIP.IsValid() || sp.Port == 0 {
			t.Fatalf("%s is not well formed: %+v", key, sp)
		}
		checkEndpoints(t, &sp)
		checkExternal(t, &sp)
	}
	for _, addr := range state.Settings.NodePortAddresses {
		if addr.IsLoopback() || slices.Contains(state.Settings.AllAddresses, dataplane.FamilyOf(addr)) {
			t.Fatalf("settings: %+v", state.Settings)
		}
	}
}

func checkEndpoints(t *rapid.T, sp *dataplane.ServicePort) {
	for _, list := range [][]dataplane.Endpoint{sp.Endpoints, sp.LocalEndpoints} {
		buckets := 0
		for i, e := range list {
			if i > 0 && e.Addr.Compare(list[i-1].Addr) <= 0 {
				t.Fatalf("%s: endpoints are not sorted or not unique: %v", sp.Key, list)
			}
			if sp.Key.Protocol == dataplane.UDP && !slices.Contains(sp.Serving, e.Addr) {
				t.Fatalf("%s: flows to %s would be stale", sp.Key, e.Addr)
			}
			buckets += e.Buckets()
		}
		if buckets > dataplane.MaxBuckets {
			t.Fatalf("%s has %d buckets", sp.Key, buckets)
		}
	}
	if sp.Key.Protocol != dataplane.UDP && sp.Serving != nil {
		t.Fatalf("%s: Serving is filled in", sp.Key)
	}
	policyLocal := sp.InternalLocal || sp.External != nil && sp.External.Local
	for _, e := range sp.LocalEndpoints {
		if !e.Local || !policyLocal {
			t.Fatalf("%s: local endpoints: %v", sp.Key, sp.LocalEndpoints)
		}
	}
}

func checkExternal(t *rapid.T, sp *dataplane.ServicePort) {
	external := sp.External
	if external == nil {
		return
	}
	if len(external.IPs) == 0 && external.NodePort == 0 {
		t.Fatalf("%s: external without a frontend", sp.Key)
	}
	if !slices.IsSortedFunc(external.IPs, netip.Addr.Compare) || !slices.IsSortedFunc(external.Guarded, netip.Addr.Compare) {
		t.Fatalf("%s: not sorted: %+v", sp.Key, external)
	}
	if (len(external.Guarded) == 0) != (len(external.SourceRanges) == 0) {
		t.Fatalf("%s: guarded %v by %v", sp.Key, external.Guarded, external.SourceRanges)
	}
	for _, addr := range external.Guarded {
		if !slices.Contains(external.IPs, addr) {
			t.Fatalf("%s: guarded %s is not served", sp.Key, addr)
		}
	}
	for _, r := range external.SourceRanges {
		if dataplane.FamilyOf(r.Addr()) != sp.Key.Family || r.Bits() == 0 {
			t.Fatalf("%s: source range %s", sp.Key, r)
		}
	}
}
