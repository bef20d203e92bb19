// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/veridict/veridict/control"
	"github.com/veridict/veridict/control/metrics"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

func newMetrics(tb testing.TB, o metrics.Options) *metrics.Metrics {
	tb.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	m, err := metrics.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// snapshotFunc is a source of snapshots.
type snapshotFunc func() *observe.Snapshot

func (f snapshotFunc) Snapshot() *observe.Snapshot { return f() }

// always returns the snapshot at every call.
func always(s *observe.Snapshot) metrics.Snapshots {
	return snapshotFunc(func() *observe.Snapshot { return s })
}

func second(n int64) time.Time { return time.Unix(n, 0) }

// smallSnapshot has two Services, one of which is uneven.
func smallSnapshot() *observe.Snapshot {
	key := func(name, port string, family dataplane.Family) dataplane.ServicePortKey {
		return dataplane.ServicePortKey{ServicePortName: dataplane.ServicePortName{
			Namespace: "shop", Name: name, Port: port, Protocol: dataplane.TCP,
		}, Family: family}
	}
	endpoint := func(addr string, total uint64) observe.Endpoint {
		return observe.Endpoint{Addr: netip.MustParseAddrPort(addr), Total: total}
	}
	s := &observe.Snapshot{
		At:     second(1000),
		Probes: observe.ProbeStatus{Mode: observe.Netfilter, Capacity: 4096},
		Services: []*observe.Service{
			{Key: key("cart", "", dataplane.IPv4), Pools: []observe.Pool{{Evenness: observe.Evenness{Untested: "no connections"}}}},
			{
				Key: key("web", "http", dataplane.IPv4), Drawn: 30, Pinned: 2, Missed: 1,
				Pools: []observe.Pool{
					{
						Endpoints: []observe.Endpoint{endpoint("10.0.0.1:8080", 20), endpoint("10.0.0.2:8080", 12), endpoint("10.0.0.3:8080", 0)},
						Evenness:  observe.Evenness{N: 30, LogE: 12.5, Rejected: true, Detectable: 0.5},
					},
					{
						Local: true, Endpoints: []observe.Endpoint{endpoint("10.0.0.1:8080", 20)},
						Evenness: observe.Evenness{Untested: "one endpoint"},
					},
				},
			},
			{
				Key: key("web", "http", dataplane.IPv6), Drawn: 4,
				Pools: []observe.Pool{{Endpoints: []observe.Endpoint{endpoint("[fd00::1]:8080", 4)}, Evenness: observe.Evenness{N: 4, Detectable: 2}}},
			},
		},
		Alarms: []observe.Alarm{
			{Kind: observe.Uneven}, {Kind: observe.MissedService}, {Kind: observe.MissedService},
		},
		Losses:     observe.Losses{Full: 1, Unmatched: 2, Retransmitted: 3, Clashed: 4},
		Selections: 36, Foreign: 5,
	}
	latency := observe.Latency{Family: dataplane.IPv4, Hook: observe.Prerouting, Outcome: observe.Translated}
	latency.Add(50 * time.Nanosecond)
	latency.Add(1500 * time.Nanosecond)
	latency.Add(2 * time.Second)
	s.Latencies = []observe.Latency{latency}
	s.Programming.Add(20 * time.Millisecond)
	return s
}

// tell tells of a start, a failed change and its success.
func tell(o control.SyncObserver) {
	both := []dataplane.Family{dataplane.IPv4, dataplane.IPv6}
	o.Queued(control.QueueFacts{At: second(100), New: control.ChangeCounts{Services: 2, EndpointSlices: 3}, Pending: control.ChangeCounts{Services: 2, EndpointSlices: 3}})
	o.Synced(control.SyncFacts{
		Full: true, Families: both, Start: second(100), Took: 3 * time.Millisecond,
		Report: dataplane.Report{
			Programmed:   dataplane.Counts{ServicePorts: 3, Endpoints: 4, Elements: 50, Chains: 20, Maps: 38},
			ElementsSent: 50, Transactions: 2, LongestCommit: 2 * time.Millisecond,
		},
	})
	o.Queued(control.QueueFacts{At: second(200), New: control.ChangeCounts{EndpointSlices: 1}, Pending: control.ChangeCounts{EndpointSlices: 1}})
	o.Synced(control.SyncFacts{Families: both[:1], Start: second(200), Took: time.Second, Err: errors.New("no space left")})
	o.Queued(control.QueueFacts{At: second(201), New: control.ChangeCounts{Services: 1}, Pending: control.ChangeCounts{Services: 1}})
	o.Synced(control.SyncFacts{
		Full: true, Drift: true, Families: both, Start: second(202), Took: 5 * time.Millisecond,
		Triggers: []control.Trigger{{Family: dataplane.IPv4, At: second(199)}},
		Pending:  control.ChangeCounts{EndpointSlices: 7},
		NoLocal:  control.NoLocal{Internal: map[dataplane.Family]int{dataplane.IPv4: 1}, External: map[dataplane.Family]int{dataplane.IPv6: 2}},
		Problems: control.ProblemCounts{Objects: 6, Rejected: 1},
		Report: dataplane.Report{
			Programmed:   dataplane.Counts{ServicePorts: 4, Endpoints: 5, Elements: 60, Chains: 21, Maps: 38},
			ElementsSent: 10, Transactions: 1, LongestCommit: time.Millisecond, StaleFlows: 8,
		},
	})
	o.Settled(control.QueueFacts{New: control.ChangeCounts{EndpointSlices: 1}})
	o.Synced(control.SyncFacts{Start: second(250), Took: time.Second, Err: errors.New("busy")})
	o.Synced(control.SyncFacts{
		Families: both[:1], Start: second(300), Took: 20 * time.Millisecond,
		Report: dataplane.Report{
			Programmed:   dataplane.Counts{ServicePorts: 4, Endpoints: 5, Elements: 60, Chains: 21, Maps: 38},
			ElementsSent: 1, Transactions: 1, LongestCommit: time.Millisecond,
		},
		NoLocal:  control.NoLocal{Internal: map[dataplane.Family]int{dataplane.IPv4: 1}, External: map[dataplane.Family]int{dataplane.IPv6: 2}},
		Problems: control.ProblemCounts{Objects: 6, Rejected: 1},
	})
}

// example has a value of every metric.
func example(tb testing.TB) (*metrics.Metrics, *prometheus.Registry) {
	registry := prometheus.NewRegistry()
	m := newMetrics(tb, metrics.Options{
		Registry: registry, Snapshots: always(smallSnapshot()), ServiceLimit: 10, EndpointLimit: 2, Version: "v1.2.3",
	})
	tell(m)
	return m, registry
}

// TestExposition compares what is shown with testdata/example.txt, without what
// depends on the machine.
func TestExposition(t *testing.T) {
	t.Parallel()
	_, registry := example(t)
	text, err := testutil.GatherAndFormat(registry, expfmt.TypeTextPlain, ourNames(t, registry)...)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/example.txt", string(text))
}

// ourNames are those of all metrics but the ones of Go, of the process and of the
// build.
func ourNames(tb testing.TB, gatherer prometheus.Gatherer) []string {
	tb.Helper()
	var names []string
	for _, family := range gather(tb, gatherer) {
		if !isForeign(family.GetName()) && family.GetName() != "veridict_build_info" {
			names = append(names, family.GetName())
		}
	}
	return names
}

func TestLint(t *testing.T) {
	t.Parallel()
	_, registry := example(t)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	// kube-proxy's own names.
	want := map[string]string{
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total": `non-counter metrics should not have "_total" suffix`,
	}
	got := map[string]string{}
	for _, problem := range problems {
		got[problem.Metric] = problem.Text
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lint (-want +got):\n%s", diff)
	}
}

func TestWithoutProbes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		snapshot *observe.Snapshot
		want     []string
	}{
		"no snapshot": {nil, nil},
		"off": {
			&observe.Snapshot{At: second(1), Probes: observe.ProbeStatus{Mode: observe.Off, Reason: "no BTF"}},
			[]string{"veridict_probes_info"},
		},
		"not read yet": {
			&observe.Snapshot{Probes: observe.ProbeStatus{Mode: observe.Netfilter}, ReadError: "gone"},
			[]string{"veridict_probes_info", "veridict_probes_read_failing", "veridict_probes_selection_counters_capacity"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			without, with := prometheus.NewRegistry(), prometheus.NewRegistry()
			newMetrics(t, metrics.Options{Registry: without})
			newMetrics(t, metrics.Options{Registry: with, Snapshots: always(tc.snapshot)})
			known := map[string]bool{}
			for _, family := range gather(t, without) {
				known[family.GetName()] = true
			}
			var got []string
			for _, family := range gather(t, with) {
				if !known[family.GetName()] && !isForeign(family.GetName()) {
					got = append(got, family.GetName())
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("metrics of the probes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOlderSnapshotIsLeftOut has scrapes overtake each other.
func TestOlderSnapshotIsLeftOut(t *testing.T) {
	t.Parallel()
	older, newer := smallSnapshot(), smallSnapshot()
	newer.At = older.At.Add(time.Second)
	newer.Services[1].Drawn += 5
	order := []*observe.Snapshot{newer, older, newer}
	registry := prometheus.NewRegistry()
	newMetrics(t, metrics.Options{Registry: registry, ServiceLimit: 10, Snapshots: snapshotFunc(func() *observe.Snapshot {
		next := order[0]
		order = order[1:]
		return next
	})})
	for range 3 {
		for _, family := range gather(t, registry) {
			if family.GetName() != "veridict_service_selections_total" {
				continue
			}
			if got := family.GetMetric()[1].GetCounter().GetValue(); got != 37 {
				t.Errorf("%v connections, want 37", got)
			}
		}
	}
}

func TestRegisteredTwice(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	newMetrics(t, metrics.Options{Registry: registry})
	_, err := metrics.New(metrics.Options{Registry: registry})
	if _, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); !ok {
		t.Errorf("error %v, want that of the registry", err)
	}
}
