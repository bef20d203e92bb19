// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/veridict/veridict/control"
	"github.com/veridict/veridict/control/api"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// fakeTime is when fake agents are asked: the time at which a bubble of testing/synctest
// begins.
func fakeTime() time.Time { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) }

// fakeAgent is what a server of control/api tells.
type fakeAgent struct {
	facts     control.Facts
	unhealthy bool
	agent     api.Agent

	mu       sync.Mutex
	snapshot *observe.Snapshot
	// advance, if not nil, makes the next snapshot.
	advance func(*observe.Snapshot)
}

func (f *fakeAgent) Snapshot() *observe.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.snapshot
}

func (f *fakeAgent) Refresh() *observe.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.advance != nil {
		next := *f.snapshot
		f.advance(&next)
		f.snapshot = &next
	}
	return f.snapshot
}

// start serves on the path until the returned function is called.
func (f *fakeAgent) start(t *testing.T, path string) (stop func()) {
	t.Helper()
	server := api.NewServer(api.Options{
		Path: path, Agent: f.agent, Layout: "markfree", Snapshots: f, Logger: slog.New(slog.DiscardHandler),
		Facts:   func() control.Facts { return f.facts },
		Healthy: func() bool { return !f.unhealthy },
	})
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	client := api.NewClient(path)
	defer client.Close()
	for {
		if _, err := client.Last().Status(t.Context()); err == nil {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("the server ended with %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	return sync.OnceFunc(func() {
		cancel(enough)
		if err := <-ended; !errors.Is(err, enough) {
			t.Errorf("the server ended with %v", err)
		}
	})
}

// serve serves until the test ends, and returns the path of the socket.
func (f *fakeAgent) serve(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	t.Cleanup(f.start(t, path))
	return path
}

// run executes a command line.
func run(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = execute(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

// fakeKey is that of a TCP port.
func fakeKey(namespace, name, port string, family dataplane.Family) dataplane.ServicePortKey {
	return dataplane.ServicePortKey{
		ServicePortName: dataplane.ServicePortName{Namespace: namespace, Name: name, Port: port, Protocol: dataplane.TCP},
		Family:          family,
	}
}

// fakeEndpoints have one bucket each, and were drawn so often; the first is local.
func fakeEndpoints(addresses []string, drawn ...uint64) []observe.Endpoint {
	endpoints := make([]observe.Endpoint, len(addresses))
	for i, address := range addresses {
		endpoints[i] = observe.Endpoint{
			Addr: netip.MustParseAddrPort(address), Local: i == 0, Buckets: 1, Share: 1 / float64(len(addresses)),
			Drawn: drawn[i], Total: drawn[i] + 7,
		}
		if drawn[i] > 0 {
			endpoints[i].Last = fakeTime().Add(-time.Duration(i+1) * 40 * time.Second)
		}
	}
	return endpoints
}

// cartService is even, and keeps clients.
func cartService() *observe.Service {
	return &observe.Service{
		Key: fakeKey("shop", "cart", "http", dataplane.IPv4),
		VIPs: []dataplane.VIP{
			{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: dataplane.TCP, Port: 80},
			{Protocol: dataplane.TCP, Port: 30080},
		},
		AffinitySeconds: 10800, Drawn: 3000, Pinned: 250, Missed: 2,
		Pools: []observe.Pool{{
			Since: fakeTime().Add(-time.Hour),
			Endpoints: fakeEndpoints([]string{"10.244.110.121:8080", "10.244.110.122:8080", "10.244.110.123:8080"},
				1010, 985, 1005),
			Evenness: observe.Evenness{N: 3000, LogE: -2.4, PValue: 0.84, Detectable: 0.09},
		}},
	}
}

// cartMetrics is another port of the same Service, and has one endpoint.
func cartMetrics() *observe.Service {
	return &observe.Service{
		Key:   fakeKey("shop", "cart", "metrics", dataplane.IPv4),
		VIPs:  []dataplane.VIP{{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: dataplane.TCP, Port: 9090}},
		Drawn: 4,
		Pools: []observe.Pool{{
			Endpoints: fakeEndpoints([]string{"10.244.110.121:9090"}, 4),
			Evenness:  observe.Evenness{N: 4, Untested: "one endpoint", PValue: 1},
		}},
	}
}

// catalogService is uneven, has long names and addresses, and a pool of its own for
// traffic policy Local.
func catalogService() *observe.Service {
	addresses := []string{"[2001:db8:1111:2222:3333:4444:5555:1]:18080", "[2001:db8:1111:2222:3333:4444:5555:2]:18080"}
	var vips []dataplane.VIP
	for _, address := range []string{"2001:db8:96::a", "2001:db8:ffff:eeee:dddd:cccc:bbbb:1", "2001:db8:ffff:eeee:dddd:cccc:bbbb:2"} {
		vips = append(vips, dataplane.VIP{Addr: netip.MustParseAddr(address), Protocol: dataplane.TCP, Port: 8443})
	}
	all := fakeEndpoints(addresses, 900_000, 100_000)
	return &observe.Service{
		Key:  fakeKey("a-namespace-with-a-long-name", "catalog-of-all-that-there-is", "https", dataplane.IPv6),
		VIPs: vips, Drawn: 1_000_100,
		Pools: []observe.Pool{
			{Endpoints: all, Evenness: observe.Evenness{N: 1_000_000, LogE: 368_064, Rejected: true, Detectable: 0.004}},
			{Local: true, Endpoints: fakeEndpoints(addresses[:1], 100), Evenness: observe.Evenness{N: 100, Untested: "one endpoint", PValue: 1}},
		},
	}
}

// fewService was hardly used, and hashService is not tested.
func fewService() *observe.Service {
	return &observe.Service{
		Key:   fakeKey("tools", "cart", "", dataplane.IPv4),
		VIPs:  []dataplane.VIP{{Addr: netip.MustParseAddr("10.96.0.77"), Protocol: dataplane.TCP, Port: 7}},
		Drawn: 5,
		Pools: []observe.Pool{{
			Endpoints: fakeEndpoints([]string{"10.244.1.1:7", "10.244.1.2:7"}, 5, 0),
			Evenness:  observe.Evenness{N: 5, LogE: 1.1, PValue: 0.025, Detectable: 1.6},
		}},
	}
}

func hashService() *observe.Service {
	return &observe.Service{
		Key:       fakeKey("tools", "hash", "", dataplane.IPv4),
		Algorithm: dataplane.SourceHash,
		Pools: []observe.Pool{{
			Endpoints: fakeEndpoints([]string{"10.244.1.1:7", "10.244.1.2:7"}, 0, 0),
			Evenness:  observe.Evenness{Untested: "source-hash: each client has its endpoint", PValue: 1},
		}},
	}
}

// emptyService has no endpoints.
func emptyService() *observe.Service {
	return &observe.Service{
		Key:   fakeKey("tools", "waits", "", dataplane.IPv4),
		Pools: []observe.Pool{{Evenness: observe.Evenness{Untested: "no endpoints", PValue: 1}}},
	}
}

func fakeLatencies() []observe.Latency {
	latencies := []observe.Latency{
		{Family: dataplane.IPv4, Hook: observe.Prerouting, Outcome: observe.Translated},
		{Family: dataplane.IPv4, Hook: observe.Prerouting, Outcome: observe.Missed},
		{Family: dataplane.IPv6, Hook: observe.Output, Outcome: observe.Foreign},
	}
	add := func(i, n int, d time.Duration) {
		for range n {
			latencies[i].Add(d)
		}
	}
	add(0, 300, 900*time.Nanosecond)
	add(0, 900, 1500*time.Nanosecond)
	add(0, 80, 6*time.Microsecond)
	add(0, 1, 3*time.Second)
	add(1, 40, 300*time.Nanosecond)
	add(2, 3, 50*time.Nanosecond)
	return latencies
}

// wellAgent has nothing to complain about.
func wellAgent() *fakeAgent {
	var hooks []observe.ProbeHook
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		for _, hook := range []observe.Hook{observe.Prerouting, observe.Output} {
			hooks = append(hooks, observe.ProbeHook{Family: family, Hook: hook, Before: -103, After: -99})
		}
	}
	f := &fakeAgent{
		agent: api.Agent{Version: "v1.2.3", Node: "node-1", PID: 42, Started: fakeTime().Add(-3 * time.Hour)},
		facts: control.Facts{
			Synced: true, LastSync: fakeTime().Add(-90 * time.Second), Took: 12 * time.Millisecond, Syncs: 9,
			Programmed: dataplane.Counts{ServicePorts: 6, Endpoints: 11, Elements: 40, Chains: 12, Maps: 8},
		},
		snapshot: &observe.Snapshot{
			At:     fakeTime(),
			Probes: observe.ProbeStatus{Mode: observe.Netfilter, Hooks: hooks, PinPath: "/sys/fs/bpf/veridict", Capacity: 65536},
			Services: []*observe.Service{
				catalogService(), cartService(), cartMetrics(), fewService(), hashService(), emptyService(),
			},
			Latencies:  fakeLatencies(),
			Losses:     observe.Losses{Unmatched: 1, Retransmitted: 2, Clashed: 3},
			Selections: 1_003_359, Foreign: 3,
		},
	}
	for range 5 {
		f.snapshot.Programming.Add(23 * time.Millisecond)
	}
	return f
}

// unwellAgent has everything to complain about, at length.
func unwellAgent() *fakeAgent {
	f := wellAgent()
	f.unhealthy = true
	f.agent.Version = "v0.0.0-20261201060859-9570c86f00ba+dirty"
	f.agent.Node = "ip-10-11-12-13.eu-central-1.compute.internal"
	f.facts.Programmed = dataplane.Counts{ServicePorts: 20_000, Endpoints: 100_000, Elements: 250_000}
	f.facts.Failures, f.facts.Problems = 3, 4
	f.facts.Pending = fakeTime().Add(-5 * time.Minute)
	f.facts.LastError = "program Services: commit: netlink receive: operation not permitted, while another table took the same priority"
	s := f.snapshot
	s.ReadError = "read selections: map lookup: bad file descriptor"
	s.Probes.Hooks = slices.Clone(s.Probes.Hooks)
	s.Probes.Hooks[1].After, s.Probes.PinPath = -98, ""
	s.Probes.Reason = "netfilter programs cannot be linked twice at one priority, so another was taken for one of them"
	s.Losses.Full = 1234
	s.Alarms = []observe.Alarm{
		{Kind: observe.ProbesFull, Since: fakeTime().Add(-time.Minute), Count: 1234, Text: "1234 connections were not counted, as there is no room for more counters"},
		{
			Kind: observe.Uneven, Key: s.Services[0].Key, Since: fakeTime().Add(-49 * time.Hour),
			Text: "a-namespace-with-a-long-name/catalog-of-all-that-there-is:https (IPv6) is uneven: of 1000000 draws 900000 came to [2001:db8:1111:2222:3333:4444:5555:1]:18080, 500000 were to be expected: see veridict buckets and veridict verify",
		},
	}
	return f
}

// blindAgent has just started, without probes.
func blindAgent() *fakeAgent {
	f := wellAgent()
	f.facts = control.Facts{}
	f.snapshot = &observe.Snapshot{Probes: observe.ProbeStatus{
		Mode: observe.Off, Reason: "the kernel knows no netfilter programs (Linux 6.4) and has no BTF, which fentry would need: see --observe",
	}}
	return f
}
