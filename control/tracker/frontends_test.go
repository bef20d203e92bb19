// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package tracker_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/tracker"
	"github.com/veridict/veridict/dataplane"
)

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, addr(text))
	}
	return list
}

// frontends returns the VIPs of each Service.
func frontends(state dataplane.State) map[string][]string {
	out := map[string][]string{}
	for key, sp := range state.ServicePorts {
		for _, vip := range sp.VIPs() {
			out[key.Name] = append(out[key.Name], vip.String())
		}
	}
	return out
}

func TestFrontends(t *testing.T) {
	t.Parallel()
	http := port("", 80)
	tests := []struct {
		name     string
		objects  []convert.Object
		want     map[string][]string
		problems []string
	}{
		{
			"all kinds, an address in two lists once, the cluster IP not again",
			[]convert.Object{with(nodePort(service("a", "172.30.0.1", http), 30000), convert.Traffic{
				ExternalIPs: addrs("172.30.0.1", "192.0.2.2", "2001:db8::1"), LoadBalancerIPs: addrs("192.0.2.1", "192.0.2.2"),
			})},
			map[string][]string{"a": {"172.30.0.1:80/tcp", "192.0.2.1:80/tcp", "192.0.2.2:80/tcp", "*:30000/tcp"}},
			nil,
		},
		{
			"nobody takes a cluster IP away by an older external IP",
			[]convert.Object{
				created(with(service("old", "172.30.0.1", http), convert.Traffic{ExternalIPs: addrs("172.30.0.2", "192.0.2.1")}), 1),
				created(service("young", "172.30.0.2", http), 2),
			},
			map[string][]string{"old": {"172.30.0.1:80/tcp", "192.0.2.1:80/tcp"}, "young": {"172.30.0.2:80/tcp"}},
			[]string{"a.yaml: Service ns/old: spec.externalIPs: 172.30.0.2:80/tcp of port ns/old (IPv4) is taken by the cluster IP of Service ns/young and not served here"},
		},
		{
			"another port of the same address is free",
			[]convert.Object{
				with(service("a", "172.30.0.1", port("", 81)), convert.Traffic{ExternalIPs: addrs("172.30.0.2")}), service("b", "172.30.0.2", http),
			},
			map[string][]string{"a": {"172.30.0.1:81/tcp", "172.30.0.2:81/tcp"}, "b": {"172.30.0.2:80/tcp"}},
			nil,
		},
		{
			"of two the older has the external IP and the NodePort, the other keeps its cluster IP",
			[]convert.Object{
				created(with(nodePort(service("young", "172.30.0.1", http), 30000), convert.Traffic{ExternalIPs: addrs("192.0.2.1")}), 2),
				created(with(nodePort(service("old", "172.30.0.2", http), 30000), convert.Traffic{LoadBalancerIPs: addrs("192.0.2.1")}), 1),
			},
			map[string][]string{"young": {"172.30.0.1:80/tcp"}, "old": {"172.30.0.2:80/tcp", "192.0.2.1:80/tcp", "*:30000/tcp"}},
			[]string{
				"a.yaml: Service ns/young: spec.externalIPs: 192.0.2.1:80/tcp of port ns/young (IPv4) is taken by the older Service ns/old and not served here",
				"a.yaml: Service ns/young: spec.ports: *:30000/tcp of port ns/young (IPv4) is taken by the older Service ns/old and not served here",
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tr := tracker.New(tracker.Options{})
			for _, object := range test.objects {
				tr.Apply(upsert(object))
			}
			if diff := cmp.Diff(test.want, frontends(tr.State())); diff != "" {
				t.Errorf("frontends (-want +got):\n%s", diff)
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
