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
	}
}

func anyPorts(t *rapid.T) []convert.Port {
	ports := []convert.Port{anyPort(t), anyPort(t)}
	if ports[0].Protocol == ports[1].Protocol && (ports[0].Name == ports[1].Name || ports[0].Port == ports[1].Port) {
		return ports[:1]
	}
	return ports
}

func anyService(t *rapid.T) convert.Object {
	s := service(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"),
		rapid.SampledFrom([]string{"", "172.30.0.1", "172.30.0.2"}).Draw(t, "IPv4"), anyPorts(t)...)
	s.IPv6 = addr(rapid.SampledFrom([]string{"", "fd00::1"}).Draw(t, "IPv6"))
	s.Created = rapid.Int64Range(0, 2).Draw(t, "created")
	for i := range s.Ports {
		s.Ports[i].NodePort = rapid.SampledFrom([]uint16{0, 0, 30080}).Draw(t, "node port")
	}
	if rapid.Bool().Draw(t, "has traffic") {
		s.Traffic = anyTraffic(t)
	}
	return s
}

func anyTraffic(t *rapid.T) *convert.Traffic {
	// Among the addresses is a cluster IP of others.
	addrs := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"172.30.0.1", "5.6.7.8", "fd00::8"}), rapid.ID[string])
	traffic := &convert.Traffic{
		InternalLocal:   rapid.Bool().Draw(t, "internal local"),
		ExternalLocal:   rapid.Bool().Draw(t, "external local"),
		AffinitySeconds: rapid.Uint32Range(0, 1).Draw(t, "affinity"),
		HealthCheckPort: rapid.SampledFrom([]uint16{0, 31000}).Draw(t, "health check"),
	}
	for _, text := range addrs.Draw(t, "external IPs") {
		traffic.ExternalIPs = append(traffic.ExternalIPs, addr(text))
	}
	for _, text := range addrs.Draw(t, "load balancer IPs") {
		traffic.LoadBalancerIPs = append(traffic.LoadBalancerIPs, addr(text))
	}
	for _, text := range rapid.SampledFrom([][]string{nil, {"10.0.0.0/8"}, {"fd00::/8", "10.0.0.0/8"}}).Draw(t, "ranges") {
		traffic.SourceRanges = append(traffic.SourceRanges, netip.MustParsePrefix(text))
	}
	return traffic
}

func anyHints(t *rapid.T) *convert.Hints {
	zones := rapid.SampledFrom([][]string{nil, {"a"}, {"b"}, {"a", "b"}}).Draw(t, "zones")
	if zones == nil {
		return nil
	}
	return &convert.Hints{Zones: zones}
}

func anySlice(t *rapid.T) convert.Object {
	s := slice(fmt.Sprintf("s%d", rapid.IntRange(1, 3).Draw(t, "slice")),
		rapid.SampledFrom([]string{"a", "b", "c", ""}).Draw(t, "service"), anyPort(t))
	s.Ports = anyPorts(t)
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
			Hints: anyHints(t),
		})
	}
	return s
}

func anyOther(t *rapid.T) convert.Object {
	prefixes := []convert.Object{
		&convert.ServiceCIDR{Name: "x"}, &convert.Node{Name: "me"}, &convert.Node{Name: "other"},
		&convert.Node{Name: "me", Zone: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}}, &convert.Node{Name: "me", Zone: "b"},
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
		options := tracker.Options{NodeName: "me", NodeCIDR: true, MasqueradeAll: true}
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
			if rapid.Bool().Draw(t, "take") {
				applyUpdate(&mirror, tr.Take())
			}
		}
		applyUpdate(&mirror, tr.Take())

		fresh := tracker.New(options)
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
		checkVIPs(t, tr.State())
	})
}

// checkVIPs holds the state to what the dataplane may rely on.
func checkVIPs(t *rapid.T, state dataplane.State) {
	type frontend struct {
		family dataplane.Family
		vip    dataplane.VIP
	}
	seen := map[frontend]dataplane.ServicePortKey{}
	for key, sp := range state.ServicePorts {
		for _, vip := range sp.VIPs() {
			f := frontend{key.Family, vip}
			if other, taken := seen[f]; taken {
				t.Fatalf("%s and %s have the same VIP %s", key, other, vip)
			}
			seen[f] = key
		}
		if key != sp.Key || !sp.ClusterIP.IsValid() || sp.Port == 0 || dataplane.FamilyOf(sp.ClusterIP) != key.Family {
			t.Fatalf("%s is not well formed: %+v", key, sp)
		}
		sortedOnce := slices.IsSortedFunc(sp.Endpoints, func(a, b dataplane.Endpoint) int {
			if a.Addr == b.Addr {
				return 1
			}
			return a.Addr.Compare(b.Addr)
		})
		if !sortedOnce {
			t.Fatalf("%s: endpoints are not sorted or not unique: %v", key, sp.Endpoints)
		}
	}
}
