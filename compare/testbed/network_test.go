// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/compare/testbed/testmain"
	"github.com/veridict/veridict/dataplane"
)

// TestPodsReachEachOther asks endpoints directly, without a Service, over both
// protocols and families, at pods' own addresses and at those of a prefix.
func TestPodsReachEachOther(t *testing.T) {
	testmain.NeedRoot(t)
	network := mustNetwork(t)
	client := mustPod(t, network, testbed.PodOptions{
		Name: "client", Addrs: []netip.Addr{netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr("fd00:10:244::1")},
	})
	endpoints := mustPod(t, network, testbed.PodOptions{
		Name:     "endpoints",
		Addrs:    []netip.Addr{netip.MustParseAddr("10.244.0.2"), netip.MustParseAddr("fd00:10:244::2")},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.8.0/24"), netip.MustParsePrefix("fd00:10:244:8::/64")},
	})
	for _, addr := range []string{"10.244.0.2", "10.244.8.0", "10.244.8.255", "fd00:10:244::2", "fd00:10:244:8::", "fd00:10:244:8::ffff"} {
		for _, protocol := range []dataplane.Protocol{dataplane.TCP, dataplane.UDP} {
			vip := dataplane.VIP{Addr: netip.MustParseAddr(addr), Protocol: protocol, Port: 8080}
			t.Run(vip.String(), func(t *testing.T) {
				mustServe(t, endpoints, vip)
				answer := mustAsk(t, client, vip)
				if got, want := answer.Endpoint, netip.AddrPortFrom(vip.Addr, vip.Port); got != want {
					t.Errorf("the answer came from %s, want %s", got, want)
				}
				if got := answer.Client.Addr(); got != client.Addrs[0] && got != client.Addrs[1] {
					t.Errorf("the endpoint saw client %s, want one of %s", got, client.Addrs)
				}
			})
		}
	}
}

// TestNodeReachesPods opens a connection from the node's own namespace.
func TestNodeReachesPods(t *testing.T) {
	testmain.NeedRoot(t)
	network := mustNetwork(t)
	pod := mustPod(t, network, testbed.PodOptions{
		Name: "endpoint", Addrs: []netip.Addr{netip.MustParseAddr("10.244.0.2"), netip.MustParseAddr("fd00:10:244::2")},
	})
	for i, addr := range pod.Addrs {
		vip := dataplane.VIP{Addr: addr, Protocol: dataplane.TCP, Port: 80}
		mustServe(t, pod, vip)
		answer := mustAsk(t, &testbed.Pod{Namespace: network.Node()}, vip)
		if got, want := answer.Client.Addr(), testbed.DefaultPlan().NodeAddrs[i]; got != want {
			t.Errorf("the endpoint saw client %s, want the node's address %s", got, want)
		}
	}
}

func TestPrefixNeedsAnAddressOfItsFamily(t *testing.T) {
	testmain.NeedRoot(t)
	_, err := mustNetwork(t).AddPod(t.Context(), testbed.PodOptions{
		Name:     "odd",
		Addrs:    []netip.Addr{netip.MustParseAddr("10.244.0.2")},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("fd00:10:244:8::/64")},
	})
	const want = "add pod odd: route fd00:10:244:8::/64: the pod has no address of that family"
	if err == nil || err.Error() != want {
		t.Errorf("got error %v, want %q", err, want)
	}
}

// TestLoadCounts opens connections to endpoints that answer, to a port where
// nobody listens, and to an address to which there is no route.
func TestLoadCounts(t *testing.T) {
	testmain.NeedRoot(t)
	network := mustNetwork(t)
	var clients []*testbed.Namespace
	for _, addr := range []string{"10.244.0.1", "10.244.0.2"} {
		client := mustPod(t, network, testbed.PodOptions{Name: "client", Addrs: []netip.Addr{netip.MustParseAddr(addr)}})
		clients = append(clients, client.Namespace)
	}
	pod := mustPod(t, network, testbed.PodOptions{Name: "endpoint", Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.1")}})
	answers := dataplane.VIP{Addr: pod.Addrs[0], Protocol: dataplane.TCP, Port: 80}
	echoes := dataplane.VIP{Addr: pod.Addrs[0], Protocol: dataplane.UDP, Port: 80}
	refuses := dataplane.VIP{Addr: pod.Addrs[0], Protocol: dataplane.TCP, Port: 81}
	nowhere := dataplane.VIP{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: dataplane.TCP, Port: 80}
	servers := []*testbed.Server{mustServe(t, pod, answers), mustServe(t, pod, echoes)}

	const each, few = 250, 3 // the kernel answers few packets without a route
	vips := make(chan dataplane.VIP)
	go func() {
		defer close(vips)
		for range each {
			for _, vip := range []dataplane.VIP{answers, echoes, refuses} {
				vips <- vip
			}
		}
		for range few {
			vips <- nowhere
		}
	}()
	var tally testbed.Tally
	sources := map[dataplane.VIP]map[netip.AddrPort]bool{answers: {}, echoes: {}}
	load := testbed.Load{Clients: clients, Observe: func(outcome testbed.Outcome) {
		tally.Add(outcome)
		if outcome.Err == nil {
			sources[outcome.VIP][outcome.Answer.Client] = true
		}
	}}
	if err := load.Run(t.Context(), vips); err != nil {
		t.Fatal(err)
	}

	endpoint := netip.AddrPortFrom(pod.Addrs[0], 80)
	for _, tc := range []struct {
		vip  dataplane.VIP
		want testbed.Count
	}{
		{answers, testbed.Count{Endpoints: map[netip.AddrPort]int{endpoint: each}, Failures: map[string]int{}}},
		{echoes, testbed.Count{Endpoints: map[netip.AddrPort]int{endpoint: each}, Failures: map[string]int{}}},
		{refuses, testbed.Count{Endpoints: map[netip.AddrPort]int{}, Failures: map[string]int{"refused": each}}},
		{nowhere, testbed.Count{Endpoints: map[netip.AddrPort]int{}, Failures: map[string]int{"unreachable": few}}},
	} {
		if diff := cmp.Diff(tc.want, tally.Of(tc.vip), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("tally of %s (-want +got):\n%s", tc.vip, diff)
		}
	}
	for vip, seen := range sources {
		if len(seen) != each {
			t.Errorf("%s: %d connections came from %d sources, want one for each", vip, each, len(seen))
		}
	}
	for _, server := range servers {
		if got := server.Answered(); got != each {
			t.Errorf("an endpoint has answered %d times, want %d", got, each)
		}
	}
	if connections, failed := tally.Totals(); connections != 3*each+few || failed != each+few {
		t.Errorf("got %d connections, %d failed, want %d and %d", connections, failed, 3*each+few, each+few)
	}
}

func mustNetwork(t *testing.T) *testbed.Network {
	t.Helper()
	network, err := testbed.NewNetwork(mustNamespace(t), testbed.DefaultPlan())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := network.Close(); err != nil {
			t.Error(err)
		}
	})
	return network
}

func mustPod(t *testing.T, network *testbed.Network, options testbed.PodOptions) *testbed.Pod {
	t.Helper()
	pod, err := network.AddPod(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func mustServe(t *testing.T, pod *testbed.Pod, at dataplane.VIP) *testbed.Server {
	t.Helper()
	server, err := pod.Serve(at.Protocol, netip.AddrPortFrom(at.Addr, at.Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

func mustAsk(t *testing.T, client *testbed.Pod, vip dataplane.VIP) testbed.Answer {
	t.Helper()
	var answer testbed.Answer
	if err := client.Do(func() (err error) {
		answer, err = testbed.Ask(t.Context(), vip)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return answer
}
