// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// The probes know exactly the frontends of what is programmed, whatever comes, goes and
// passes from one Service to another, and totals are what was counted.
func TestRandomChanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := newRig()
		ports := make(map[dataplane.ServicePortKey]dataplane.ServicePort)
		var counted uint64
		// began are those that were made since the last reading.
		began := make(map[dataplane.ServicePortKey]bool)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1:
				began[change(t, r, ports)] = true
			case 2:
				r.reset(t, ports)
			case 3, 4:
				counted += drawSome(t, r, ports)
			case 5:
				before := totals(r.Snapshot())
				for key, n := range totals(r.read()) {
					if n < before[key] && !began[key] {
						t.Fatalf("the total of %s went from %d to %d", key, before[key], n)
					}
				}
				clear(began)
			}
		}
		s := r.read()
		if s.Selections != counted {
			t.Fatalf("%d selections, want %d", s.Selections, counted)
		}
		owned := make(map[observe.FrontendID]bool)
		for _, sp := range ports {
			for _, vip := range sp.VIPs() {
				owned[observe.FrontendID{VIP: vip, Family: sp.Key.Family}] = true
			}
		}
		got := make(map[observe.FrontendID]bool)
		for id := range r.probes.frontends {
			got[id] = true
		}
		if diff := cmp.Diff(owned, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Fatalf("frontends (-want +got):\n%s", diff)
		}
	})
}

// change adds, changes or removes a ServicePort. Cluster IPs are few, so that they pass
// from one to another; no two have the same at a time. It returns the one that is new,
// if one is.
func change(t *rapid.T, r *rig, ports map[dataplane.ServicePortKey]dataplane.ServicePort) dataplane.ServicePortKey {
	sp := web()
	sp.Key.Name = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	var removed []dataplane.ServicePortKey
	if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
		delete(ports, sp.Key)
		r.sync(t, nil, sp.Key)
		return dataplane.ServicePortKey{}
	}
	sp.ClusterIP = netip.AddrFrom4([4]byte{10, 96, 0, byte(rapid.IntRange(1, 3).Draw(t, "cluster IP"))})
	for key, other := range ports {
		if key != sp.Key && other.ClusterIP == sp.ClusterIP {
			delete(ports, key)
			removed = append(removed, key)
		}
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "endpoints") {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)
		sp.Endpoints = append(sp.Endpoints, dataplane.Endpoint{Addr: addr})
	}
	_, known := ports[sp.Key]
	ports[sp.Key] = sp
	r.sync(t, list(sp), removed...)
	if known {
		return dataplane.ServicePortKey{}
	}
	return sp.Key
}

func (r *rig) reset(t *rapid.T, ports map[dataplane.ServicePortKey]dataplane.ServicePort) {
	if _, err := r.Reset(context.Background(), dataplane.State{ServicePorts: maps.Clone(ports)}); err != nil {
		t.Fatal(err)
	}
}

// drawSome counts draws of endpoints that are there.
func drawSome(t *rapid.T, r *rig, ports map[dataplane.ServicePortKey]dataplane.ServicePort) uint64 {
	var sum uint64
	for _, key := range slices.SortedFunc(maps.Keys(ports), dataplane.ServicePortKey.Compare) {
		sp := ports[key]
		for _, ep := range sp.Endpoints {
			n := rapid.Uint64Range(0, 5).Draw(t, "draws")
			r.draw(sp.VIP(), ep.Addr.String(), n)
			sum += n
		}
	}
	return sum
}

func totals(s *observe.Snapshot) map[dataplane.ServicePortKey]uint64 {
	all := make(map[dataplane.ServicePortKey]uint64)
	for _, service := range s.Services {
		all[service.Key] = service.Selections()
	}
	return all
}
