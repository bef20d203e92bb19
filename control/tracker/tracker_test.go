// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package tracker_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/tracker"
	"github.com/veridict/veridict/dataplane"
)

func compareState() cmp.Options {
	return cmp.Options{
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmpopts.EquateEmpty(),
	}
}

func addr(s string) netip.Addr {
	if s == "" {
		return netip.Addr{}
	}
	return netip.MustParseAddr(s)
}

func upsert(objects ...convert.Object) []convert.Change {
	var changes []convert.Change
	for _, object := range objects {
		changes = append(changes, convert.Change{Key: object.Key(), Object: object, Origin: "a.yaml"})
	}
	return changes
}

func remove(objects ...convert.Object) []convert.Change {
	changes := upsert(objects...)
	for i := range changes {
		changes[i].Object = nil
	}
	return changes
}

func service(name, ipv4 string, ports ...convert.Port) *convert.Service {
	return &convert.Service{Name: convert.Name{Namespace: "ns", Name: name}, IPv4: addr(ipv4), Ports: ports}
}

func created(s *convert.Service, at int64) *convert.Service {
	out := *s
	out.Created = at
	return &out
}

func port(name string, number uint16) convert.Port {
	return convert.Port{Name: name, Protocol: dataplane.TCP, Port: number}
}

func slice(name, service string, p convert.Port, endpoints ...convert.Endpoint) *convert.Slice {
	s := &convert.Slice{
		Name: convert.Name{Namespace: "ns", Name: name}, Service: service, Family: dataplane.IPv4,
		Ports: []convert.Port{p}, Endpoints: endpoints,
	}
	if len(endpoints) > 0 {
		s.Family = dataplane.FamilyOf(endpoints[0].Addr)
	}
	return s
}

func ready(a string) convert.Endpoint {
	return convert.Endpoint{Addr: addr(a), Conditions: convert.Conditions{Ready: true, Serving: true}}
}

func terminating(a string) convert.Endpoint {
	return convert.Endpoint{Addr: addr(a), Conditions: convert.Conditions{Serving: true, Terminating: true}}
}

// text writes a state as lines of "service:port/family VIP endpoints".
func text(state dataplane.State) map[string]string {
	out := map[string]string{}
	for key, sp := range state.ServicePorts {
		var endpoints []string
		for _, e := range sp.Endpoints {
			endpoints = append(endpoints, e.Addr.String())
		}
		out[key.Name+":"+key.Port+"/"+key.Family.String()] = strings.TrimSpace(sp.VIP().String() + " " + strings.Join(endpoints, " "))
	}
	return out
}

func TestState(t *testing.T) {
	t.Parallel()
	http := port("http", 80)
	target := port("http", 8080)
	dual := service("dual", "172.30.0.3", http)
	dual.IPv6 = addr("fd00::3")
	udp := convert.Port{Name: "dns", Protocol: dataplane.UDP, Port: 80}
	tests := []struct {
		name     string
		batches  [][]convert.Change
		want     map[string]string
		problems []string
	}{
		{"no objects", nil, map[string]string{}, nil},
		{
			"slices of a Service are merged, sorted by address",
			[][]convert.Change{upsert(
				slice("s2", "web", target, ready("10.0.0.9"), ready("10.0.0.2")), service("web", "172.30.0.1", http),
				slice("s1", "web", target, ready("10.0.0.10"), ready("10.0.0.2")),
			)},
			map[string]string{"web:http/IPv4": "172.30.0.1:80/tcp 10.0.0.2:8080 10.0.0.9:8080 10.0.0.10:8080"},
			nil,
		},
		{
			"slices may have different target ports",
			[][]convert.Change{upsert(service("web", "172.30.0.1", http),
				slice("s1", "web", target, ready("10.0.0.1")), slice("s2", "web", port("http", 9090), ready("10.0.0.1")))},
			map[string]string{"web:http/IPv4": "172.30.0.1:80/tcp 10.0.0.1:8080 10.0.0.1:9090"},
			nil,
		},
		{
			"of duplicates the one that is not terminating wins",
			[][]convert.Change{upsert(service("web", "172.30.0.1", http),
				slice("s1", "web", target, terminating("10.0.0.1"), ready("10.0.0.2"), ready("10.0.0.3")),
				slice("s2", "web", target, ready("10.0.0.1"), terminating("10.0.0.2")))},
			map[string]string{"web:http/IPv4": "172.30.0.1:80/tcp 10.0.0.1:8080 10.0.0.2:8080 10.0.0.3:8080"},
			nil,
		},
		{
			"terminating endpoints serve while none is ready",
			[][]convert.Change{upsert(service("web", "172.30.0.1", http),
				slice("s1", "web", target, terminating("10.0.0.1"), convert.Endpoint{Addr: addr("10.0.0.2")}))},
			map[string]string{"web:http/IPv4": "172.30.0.1:80/tcp 10.0.0.1:8080"},
			nil,
		},
		{
			"ports, protocols and slices of other Services stay apart",
			[][]convert.Change{upsert(service("web", "172.30.0.1", http, udp),
				slice("s1", "web", convert.Port{Name: "dns", Protocol: dataplane.UDP, Port: 53}, ready("10.0.0.1")),
				slice("s2", "web", port("other", 1), ready("10.0.0.2")), slice("s3", "nobody", target, ready("10.0.0.3")))},
			map[string]string{"web:http/IPv4": "172.30.0.1:80/tcp", "web:dns/IPv4": "172.30.0.1:80/udp 10.0.0.1:53"},
			[]string{"a.yaml: EndpointSlice ns/s3: metadata.labels[kubernetes.io/service-name]: " +
				"the slice is not used until there is a Service ns/nobody"},
		},
		{
			"a slice is used once there is its Service",
			[][]convert.Change{upsert(slice("s1", "web", target, ready("10.0.0.1"))), upsert(service("web", "172.30.0.1", http))},
			map[string]string{"web:http/IPv4": "172.30.0.1:80/tcp 10.0.0.1:8080"},
			nil,
		},
		{
			"each family has its own endpoints",
			[][]convert.Change{upsert(dual, slice("s1", "dual", target, ready("10.0.0.1")), slice("s2", "dual", target, ready("fd01::1")))},
			map[string]string{
				"dual:http/IPv4": "172.30.0.3:80/tcp 10.0.0.1:8080", "dual:http/IPv6": "[fd00::3]:80/tcp [fd01::1]:8080",
			},
			nil,
		},
		{
			"a renamed port takes the VIP over",
			[][]convert.Change{
				upsert(service("web", "172.30.0.1", http), slice("s1", "web", target, ready("10.0.0.1"))),
				upsert(service("web", "172.30.0.1", port("web", 80))),
			},
			map[string]string{"web:web/IPv4": "172.30.0.1:80/tcp"},
			nil,
		},
		{
			"a slice may change its Service",
			[][]convert.Change{
				upsert(service("a", "172.30.0.1", http), service("b", "172.30.0.2", http), slice("s1", "a", target, ready("10.0.0.1"))),
				upsert(slice("s1", "b", target, ready("10.0.0.1"))),
			},
			map[string]string{"a:http/IPv4": "172.30.0.1:80/tcp", "b:http/IPv4": "172.30.0.2:80/tcp 10.0.0.1:8080"},
			nil,
		},
		{
			"slices wait for their Service",
			[][]convert.Change{
				upsert(service("a", "172.30.0.1", http), slice("s1", "a", target, ready("10.0.0.1"))),
				remove(service("a", "", http)), upsert(service("a", "172.30.0.9", http)),
			},
			map[string]string{"a:http/IPv4": "172.30.0.9:80/tcp 10.0.0.1:8080"},
			nil,
		},
		{
			"of two Services the older has the VIP",
			[][]convert.Change{
				upsert(created(service("a", "172.30.0.1", http), 200)), upsert(created(service("b", "172.30.0.1", http), 100)),
			},
			map[string]string{"b:http/IPv4": "172.30.0.1:80/tcp"},
			[]string{"a.yaml: Service ns/a: spec.clusterIP: 172.30.0.1:80/tcp of port ns/a:http is taken by the older Service ns/b, which is served instead"},
		},
		{
			"one without a creation time is younger than any with one, then names decide",
			[][]convert.Change{upsert(
				service("a", "172.30.0.1", http), service("b", "172.30.0.1", http), created(service("c", "172.30.0.1", http), 100))},
			map[string]string{"c:http/IPv4": "172.30.0.1:80/tcp"},
			[]string{
				"a.yaml: Service ns/a: spec.clusterIP: 172.30.0.1:80/tcp of port ns/a:http is taken by the older Service ns/c, which is served instead",
				"a.yaml: Service ns/b: spec.clusterIP: 172.30.0.1:80/tcp of port ns/b:http is taken by the older Service ns/c, which is served instead",
			},
		},
		{
			"reports name the one that is served now",
			[][]convert.Change{
				upsert(service("c", "172.30.0.1", http)), upsert(service("b", "172.30.0.1", http), service("d", "172.30.0.1", http)),
				upsert(service("a", "172.30.0.1", http)),
			},
			map[string]string{"a:http/IPv4": "172.30.0.1:80/tcp"},
			[]string{
				"a.yaml: Service ns/b: spec.clusterIP: 172.30.0.1:80/tcp of port ns/b:http is taken by the older Service ns/a, which is served instead",
				"a.yaml: Service ns/c: spec.clusterIP: 172.30.0.1:80/tcp of port ns/c:http is taken by the older Service ns/a, which is served instead",
				"a.yaml: Service ns/d: spec.clusterIP: 172.30.0.1:80/tcp of port ns/d:http is taken by the older Service ns/a, which is served instead",
			},
		},
		{
			"the next in line takes over",
			[][]convert.Change{
				upsert(service("a", "172.30.0.1", http), service("b", "172.30.0.1", http), service("c", "172.30.0.1", http)),
				remove(service("a", "")),
			},
			map[string]string{"b:http/IPv4": "172.30.0.1:80/tcp"},
			[]string{"a.yaml: Service ns/c: spec.clusterIP: 172.30.0.1:80/tcp of port ns/c:http is taken by the older Service ns/b, which is served instead"},
		},
		{
			"one port may be taken while the other is served",
			[][]convert.Change{upsert(service("a", "172.30.0.1", http), service("b", "172.30.0.1", http, port("alt", 81)))},
			map[string]string{"a:http/IPv4": "172.30.0.1:80/tcp", "b:alt/IPv4": "172.30.0.1:81/tcp"},
			[]string{"a.yaml: Service ns/b: spec.clusterIP: 172.30.0.1:80/tcp of port ns/b:http is taken by the older Service ns/a, which is served instead"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tr := tracker.New(tracker.Options{})
			for _, batch := range test.batches {
				tr.Apply(batch)
			}
			if diff := cmp.Diff(test.want, text(tr.State())); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
			var problems []string
			for _, p := range tr.Problems() {
				problems = append(problems, p.String())
			}
			if diff := cmp.Diff(test.problems, problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTooManyEndpoints(t *testing.T) {
	t.Parallel()
	var endpoints []convert.Endpoint
	for i := range dataplane.MaxBuckets + 3 {
		endpoints = append(endpoints, ready(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)))
	}
	tr := tracker.New(tracker.Options{})
	tr.Apply(upsert(service("web", "172.30.0.1", port("", 80)), slice("s1", "web", port("", 80), endpoints...)))
	for _, sp := range tr.State().ServicePorts {
		if len(sp.Endpoints) != dataplane.MaxBuckets {
			t.Errorf("%d endpoints are served, want %d", len(sp.Endpoints), dataplane.MaxBuckets)
		}
		if last := sp.Endpoints[dataplane.MaxBuckets-1].Addr.String(); last != "10.0.255.254:80" {
			t.Errorf("the last endpoint is %s, want the 65535th in order", last)
		}
	}
	if problems := tr.Problems(); len(problems) != 1 || problems[0].Field != "spec.ports" {
		t.Errorf("problems: %v, want one about spec.ports", problems)
	}
}

func TestTakeLeavesOutWhatReturned(t *testing.T) {
	t.Parallel()
	web, web2 := service("web", "172.30.0.1", port("http", 80)), service("web2", "172.30.0.2", port("http", 80))
	tr := tracker.New(tracker.Options{NodePorts: tracker.NodePorts{Primary: true}})
	tr.Apply(upsert(web))
	if u := tr.Take(); len(u.Changed) != 1 || u.Settings != nil {
		t.Errorf("first update: %+v", u)
	}
	tr.Apply(remove(web))
	tr.Apply(upsert(web2))
	tr.Apply(upsert(web))
	tr.Apply(remove(web2))
	if u := tr.Take(); !u.Empty() {
		t.Errorf("update of changes that were taken back: %+v", u)
	}
	tr.Apply(remove(web))
	tr.TakeState()
	if u := tr.Take(); !u.Empty() {
		t.Errorf("update after TakeState: %+v", u)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	prefix := netip.MustParsePrefix
	tr := tracker.New(tracker.Options{NodeName: "me", NodeCIDR: true, MasqueradeAll: true, NodePorts: tracker.NodePorts{Primary: true}})
	tr.Apply(upsert(
		&convert.Node{Name: "other", PodCIDRs: []netip.Prefix{prefix("10.1.0.0/16")}},
		&convert.ServiceCIDR{Name: "b", CIDRs: []netip.Prefix{prefix("172.31.0.0/16"), prefix("fd00::/112")}},
		&convert.ServiceCIDR{Name: "a", CIDRs: []netip.Prefix{prefix("172.30.0.0/16"), prefix("172.31.0.0/16")}},
	))
	want := dataplane.Settings{
		ServiceCIDRs: []netip.Prefix{prefix("172.30.0.0/16"), prefix("172.31.0.0/16"), prefix("fd00::/112")}, MasqueradeAll: true,
	}
	if diff := cmp.Diff(want, tr.State().Settings, compareState()); diff != "" || tr.HasNode() {
		t.Errorf("settings without the node (-want +got):\n%s", diff)
	}
	tr.Take()
	me := &convert.Node{Name: "me", PodCIDRs: []netip.Prefix{prefix("10.2.0.0/24"), prefix("10.3.0.0/24"), prefix("fd02::/64")}}
	tr.Apply(upsert(me))
	want.LocalDetector.CIDRs = []netip.Prefix{prefix("10.2.0.0/24"), prefix("fd02::/64")}
	if diff := cmp.Diff(&want, tr.Take().Settings, compareState()); diff != "" {
		t.Errorf("settings with the node (-want +got):\n%s", diff)
	}
	tr.Apply(upsert(&convert.Node{Name: "me", Zone: "z", PodCIDRs: me.PodCIDRs}))
	if u := tr.Take(); u.Settings != nil {
		t.Errorf("settings of a change that is of no interest: %+v", u.Settings)
	}
}
