// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/dataplane"
)

// rig is a Syncer on a fake kernel with a clock, overseen.
type rig struct {
	*Syncer
	t        *testing.T
	fake     *Fake
	clock    *clock
	overseer *overseer
	// commits are the transactions since the last call of forget.
	commits []Commit
}

func newRig(t *testing.T, options Options, list ...dataplane.ServicePort) *rig {
	r := &rig{t: t, fake: NewFake(), clock: newClock()}
	options = options.withDefaults()
	options.Now = r.clock.now
	r.overseer = oversee(r.fake, options.Layout, r.clock, 100*time.Millisecond)
	look := r.fake.Committed
	r.fake.Committed = func(c Commit) {
		look(c)
		r.commits = append(r.commits, c)
	}
	r.Syncer = r.fake.NewSyncer(options)
	mustReset(t, r.Syncer, stateOf(dataplane.Settings{}, list...))
	r.commits = nil
	return r
}

func (r *rig) change(list ...dataplane.ServicePort) dataplane.Report {
	r.t.Helper()
	return r.sync(dataplane.Update{Changed: list})
}

func (r *rig) sync(update dataplane.Update) dataplane.Report {
	r.t.Helper()
	r.commits = nil
	report := mustSync(r.t, r.Syncer, update)
	for _, violation := range r.overseer.violations {
		r.t.Error(violation)
	}
	if got := elementsIn(r.fake); report.Programmed.Elements != got {
		r.t.Errorf("report has %d elements, the kernel %d", report.Programmed.Elements, got)
	}
	return report
}

// changes lists the elements that were added (+) and deleted (-).
func (r *rig) changes() []string {
	var list []string
	for _, c := range r.commits {
		for _, change := range c.Changes {
			verb := "+"
			if change.Delete {
				verb = "-"
			}
			list = append(list, fmt.Sprintf("%s %s %s", verb, change.Set, change.Element))
		}
	}
	return list
}

const webVIP = "172.30.0.1:80/tcp"

func TestOneEndpointLeaves(t *testing.T) {
	r := newRig(t, Options{}, servicePort("web", webVIP, remote(0, 20)...))
	endpoints := remote(0, 20)
	report := r.change(servicePort("web", webVIP, append(endpoints[:5:5], endpoints[6:]...)...))
	want := []string{
		"- endpoints-tcp 172.30.0.1 . 80 . 5",
		"+ endpoints-tcp 172.30.0.1 . 80 . 5 : 10.180.1.20 . 8080",
		"- service-ips 172.30.0.1 . tcp . 80",
		"+ service-ips 172.30.0.1 . tcp . 80 : goto cluster-19",
	}
	if diff := cmp.Diff(want, r.changes()); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if report.ElementsSent != len(want) {
		t.Errorf("%d elements sent, want %d", report.ElementsSent, len(want))
	}
}

func TestSurplusRowsLeaveWhenDue(t *testing.T) {
	r := newRig(t, Options{}, servicePort("web", webVIP, remote(0, 3)...))
	start := r.clock.now()
	report := r.change(servicePort("web", webVIP, remote(0, 1)...))
	if want := start.Add(100 * time.Millisecond); !report.Due.Equal(want) {
		t.Fatalf("due at %s, want %s", report.Due, want)
	}
	r.clock.advance(99 * time.Millisecond)
	if report = r.sync(dataplane.Update{}); report.ElementsSent != 0 {
		t.Errorf("too early: %v", r.changes())
	}
	r.clock.advance(time.Millisecond)
	report = r.sync(dataplane.Update{})
	want := []string{"- endpoints-tcp 172.30.0.1 . 80 . 1", "- endpoints-tcp 172.30.0.1 . 80 . 2"}
	if diff := cmp.Diff(want, r.changes()); diff != "" {
		t.Errorf("changes when due (-want +got):\n%s", diff)
	}
	if !report.Due.IsZero() {
		t.Errorf("due at %s, want nothing to do", report.Due)
	}
}

// A VIP that shrinks again waits again, and one that grows keeps its rows.
func TestSurplusRowsWaitForTheLastChange(t *testing.T) {
	r := newRig(t, Options{}, servicePort("web", webVIP, remote(0, 3)...))
	r.change(servicePort("web", webVIP, remote(0, 2)...))
	r.clock.advance(60 * time.Millisecond)
	r.change(servicePort("web", webVIP, remote(0, 3)...))
	r.change(servicePort("web", webVIP, remote(0, 1)...))
	r.clock.advance(60 * time.Millisecond)
	if report := r.sync(dataplane.Update{}); report.ElementsSent != 0 {
		t.Errorf("too early: %v", r.changes())
	}
	r.clock.advance(40 * time.Millisecond)
	if report := r.sync(dataplane.Update{}); report.ElementsSent != 2 {
		t.Errorf("when due: %v, want two rows deleted", r.changes())
	}
}

// The overseer is worth something: it sees rows that go too early.
func TestRowsThatGoAtOnceAreSeen(t *testing.T) {
	r := newRig(t, Options{SurplusDelay: -1}, servicePort("web", webVIP, remote(0, 3)...))
	r.clock.advance(time.Hour)
	mustSync(t, r.Syncer, dataplane.Update{Changed: []dataplane.ServicePort{servicePort("web", webVIP, remote(0, 2)...)}})
	if len(r.overseer.violations) == 0 {
		t.Error("a row was removed with its verdict, and nobody saw it")
	}
	if got := elementsIn(r.fake); got != 4 {
		t.Errorf("%d elements, want 4: nothing is left for later", got)
	}
}

func TestRowsComeNoLaterThanTheirVerdict(t *testing.T) {
	for _, batch := range []int{1, 10, 100} {
		t.Run(fmt.Sprint(batch), func(t *testing.T) {
			r := newRig(t, Options{BatchElements: batch})
			r.change(manyServicePorts(30, -1)...)
			published := make(map[string]bool)
			for _, change := range r.changes() {
				addr := strings.Fields(change)[2]
				if published[addr] && strings.HasPrefix(change, "+ endpoints") {
					t.Fatalf("row after its verdict: %s", change)
				}
				published[addr] = published[addr] || strings.Contains(change, "goto cluster-")
			}
			for i, c := range r.commits {
				// What publishes one ServicePort stays together.
				if limit := batch + 2; len(c.Changes) > limit {
					t.Errorf("transaction %d has %d elements, want at most %d", i, len(c.Changes), limit)
				}
			}
			// Everything shrinks and changes at once.
			var list []dataplane.ServicePort
			for i, sp := range manyServicePorts(30, -1) {
				list = append(list, servicePort(sp.Key.Name, sp.VIP().String(), remote(200+i, i%5)...))
			}
			r.change(list...)
		})
	}
}

func TestIdleChainsLeaveWhenDue(t *testing.T) {
	r := newRig(t, Options{}, servicePort("web", webVIP, remote(0, 20)...), servicePort("api", "172.30.0.2:80/tcp", remote(0, 3)...))
	chains := func(report dataplane.Report) int { return report.Programmed.Chains }
	r.clock.advance(time.Hour)
	before := chains(r.sync(dataplane.Update{}))
	report := r.sync(dataplane.Update{Removed: []dataplane.ServicePortKey{servicePort("web", webVIP).Key, servicePort("api", "172.30.0.2:80/tcp").Key}})
	r.clock.time = report.Due
	report = r.sync(dataplane.Update{})
	if want := r.clock.now().Add(time.Minute - 100*time.Millisecond); !report.Due.Equal(want) {
		t.Fatalf("due at %s, want %s", report.Due, want)
	}
	r.clock.time = report.Due.Add(-time.Nanosecond)
	if got := chains(r.sync(dataplane.Update{})); got != before {
		t.Errorf("too early: %d chains, want %d", got, before)
	}
	r.clock.time = report.Due
	report = r.sync(dataplane.Update{})
	if got := chains(report); got != before-1 {
		t.Errorf("%d chains, want %d: cluster-20 goes, cluster-3 stays", got, before-1)
	}
	if !report.Due.IsZero() {
		t.Errorf("due at %s, want nothing to do", report.Due)
	}
	if r.fake.Table(dataplane.IPv4).Chains["cluster-20"] != nil {
		t.Error("cluster-20 is still there")
	}
}

func TestSettingsTouchOnlyTheirChains(t *testing.T) {
	r := newRig(t, Options{}, servicePort("web", webVIP, remote(0, 3)...))
	handles := func() map[string]string {
		list := make(map[string]string)
		for name, chain := range r.fake.Table(dataplane.IPv4).Chains {
			for _, rule := range chain.Rules {
				list[name] += fmt.Sprint(*rule.Handle, " ")
			}
		}
		return list
	}
	before := handles()
	report := r.sync(dataplane.Update{Settings: &dataplane.Settings{LocalDetector: dataplane.LocalDetector{CIDRs: podCIDRs}}})
	if report.ElementsSent != 0 || report.Transactions != 2 {
		t.Errorf("%d elements in %d transactions, want none in 2", report.ElementsSent, report.Transactions)
	}
	depends := []string{
		"masquerade-cluster-ips", "masquerade-short-circuit", "external-local", "nodeport-external-local",
		"external-local-pins", "nodeport-external-local-pins",
	}
	for name, list := range handles() {
		if changed := before[name] != list; changed != slices.Contains(depends, name) {
			t.Errorf("chain %s: rewritten: %t", name, changed)
		}
	}
	report = r.sync(dataplane.Update{Settings: &dataplane.Settings{LocalDetector: dataplane.LocalDetector{CIDRs: podCIDRs}}})
	if report.Transactions != 0 {
		t.Errorf("the same settings again: %d transactions, want none", report.Transactions)
	}
}

func TestVIPsPassOn(t *testing.T) {
	const first, second = "172.30.0.1:80/tcp", "172.30.0.2:80/tcp"
	a, b := servicePort("a", first, remote(0, 2)...), servicePort("b", second, remote(10, 2)...)
	cases := []struct {
		name   string
		update dataplane.Update
		want   []dataplane.ServicePort
		// stays are the VIPs that must have a verdict all the time.
		stays []string
	}{
		{
			name:   "handover",
			update: dataplane.Update{Changed: []dataplane.ServicePort{servicePort("c", first, remote(20, 3)...)}, Removed: []dataplane.ServicePortKey{a.Key}},
			want:   []dataplane.ServicePort{b, servicePort("c", first, remote(20, 3)...)},
			stays:  []string{first, second},
		},
		{
			name:   "move",
			update: dataplane.Update{Changed: []dataplane.ServicePort{servicePort("a", "172.30.0.3:80/tcp", remote(0, 2)...)}},
			want:   []dataplane.ServicePort{servicePort("a", "172.30.0.3:80/tcp", remote(0, 2)...), b},
			stays:  []string{second},
		},
		{
			name:   "swap",
			update: dataplane.Update{Changed: []dataplane.ServicePort{servicePort("a", second, remote(0, 2)...), servicePort("b", first, remote(10, 2)...)}},
			want:   []dataplane.ServicePort{servicePort("a", second, remote(0, 2)...), servicePort("b", first, remote(10, 2)...)},
			stays:  []string{first, second},
		},
		{
			name:   "removal, also of an unknown one",
			update: dataplane.Update{Removed: []dataplane.ServicePortKey{a.Key, servicePort("unknown", first).Key}},
			want:   []dataplane.ServicePort{b},
			stays:  []string{second},
		},
		{
			name:   "no endpoints any more",
			update: dataplane.Update{Changed: []dataplane.ServicePort{servicePort("a", first)}},
			want:   []dataplane.ServicePort{servicePort("a", first), b},
			stays:  []string{second},
		},
	}
	for _, tc := range cases {
		for _, batch := range []int{1, 4000} {
			t.Run(fmt.Sprintf("%s with batches of %d", tc.name, batch), func(t *testing.T) {
				r := newRig(t, Options{BatchElements: batch}, a, b)
				look := r.fake.Committed
				r.fake.Committed = func(c Commit) {
					look(c)
					sizes, _ := published(r.fake.tables[dataplane.IPv4], MarkFree)
					for _, text := range tc.stays {
						if sizes[drawing{dataplane.IPv4, vipOf(text), clusterScope}] == 0 {
							t.Errorf("transaction %d: %s has no verdict", c.Number, text)
						}
					}
				}
				report := r.sync(tc.update)
				for !report.Due.IsZero() {
					r.clock.time = report.Due
					report = r.sync(dataplane.Update{})
				}
				fresh := NewFake()
				mustReset(t, fresh.NewSyncer(Options{}), stateOf(dataplane.Settings{}, tc.want...))
				if diff := cmp.Diff(dumpOf(fresh), dumpOf(r.fake)); diff != "" {
					t.Errorf("tables (-fresh +got):\n%s", diff)
				}
				if report.Programmed.ServicePorts != len(tc.want) {
					t.Errorf("report has %d ServicePorts, want %d", report.Programmed.ServicePorts, len(tc.want))
				}
				r.fake.Committed = look
				for _, sp := range tc.want {
					report = r.sync(dataplane.Update{Removed: []dataplane.ServicePortKey{sp.Key}})
				}
				r.clock.time = report.Due
				if report = r.sync(dataplane.Update{}); report.Programmed.Elements != 0 {
					t.Errorf("%d elements after all were removed, want none", report.Programmed.Elements)
				}
			})
		}
	}
}

// I7: a restart with the same state moves no row; with another one it moves as few
// as an update would.
func TestRestartKeepsBuckets(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		r := newRig(t, Options{Layout: layout}, servicePort("web", webVIP, remote(0, 8)...))
		endpoints := remote(0, 8)[1:]
		r.change(servicePort("web", webVIP, endpoints...))
		state := stateOf(dataplane.Settings{}, servicePort("web", webVIP, endpoints...))
		report := mustReset(t, r.fake.NewSyncer(Options{Layout: layout, Now: r.clock.now}), state)
		if report.ElementsSent != 0 {
			t.Errorf("same state: %d elements sent, want none", report.ElementsSent)
		}
		state = stateOf(dataplane.Settings{}, servicePort("web", webVIP, endpoints[1:]...))
		report = mustReset(t, r.fake.NewSyncer(Options{Layout: layout, Now: r.clock.now}), state)
		if report.ElementsSent != 4 {
			t.Errorf("one endpoint less: %d elements sent, want row and verdict replaced", report.ElementsSent)
		}
	})
}

func TestErrorsAskForReset(t *testing.T) {
	for _, errno := range []error{syscall.ENOENT, syscall.EEXIST, syscall.EBUSY, syscall.ENOBUFS, syscall.EPERM, context.DeadlineExceeded} {
		r := newRig(t, Options{}, servicePort("web", webVIP, remote(0, 1)...))
		r.fake.Refuse = func(Commit) error { return errno }
		update := dataplane.Update{Changed: []dataplane.ServicePort{servicePort("web", webVIP, remote(0, 2)...)}}
		if _, err := r.Sync(t.Context(), update); !errors.Is(err, errno) {
			t.Errorf("sync: %v, want %v", err, errno)
		}
		r.fake.Refuse = nil
		if _, err := r.Sync(t.Context(), update); err == nil {
			t.Error("sync without reset succeeded")
		}
		mustReset(t, r.Syncer, stateOf(dataplane.Settings{}, update.Changed...))
		r.sync(dataplane.Update{})
	}
}

func TestSyncBeforeReset(t *testing.T) {
	if _, err := NewFake().NewSyncer(Options{}).Sync(t.Context(), dataplane.Update{}); err == nil {
		t.Error("sync without reset succeeded")
	}
}

func TestCancelledContext(t *testing.T) {
	r := newRig(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	update := dataplane.Update{Changed: []dataplane.ServicePort{servicePort("web", webVIP)}}
	if _, err := r.Sync(ctx, update); !errors.Is(err, context.Canceled) {
		t.Errorf("sync: %v, want it cancelled", err)
	}
	if _, err := r.Reset(ctx, stateOf(dataplane.Settings{})); !errors.Is(err, context.Canceled) {
		t.Errorf("reset: %v, want it cancelled", err)
	}
}

// An endpoint that several ServicePorts of this node share stays in
// hairpin-connections as long as one has it.
func TestSharedElements(t *testing.T) {
	r := newRig(t, Options{}, servicePort("a", "172.30.0.1:80/tcp", "+10.180.0.1:8080"), servicePort("b", "172.30.0.1:81/tcp", "+10.180.0.1:8080"))
	r.change(servicePort("a", "172.30.0.1:80/tcp", "10.180.0.1:8080"))
	if got := r.changes(); len(got) != 0 {
		t.Errorf("one of two leaves: %v, want no change", got)
	}
	r.sync(dataplane.Update{Removed: []dataplane.ServicePortKey{servicePort("b", "172.30.0.1:81/tcp").Key}})
	want := []string{"- service-ips 172.30.0.1 . tcp . 81", "- hairpin-connections 10.180.0.1 . 10.180.0.1 . tcp . 8080"}
	if diff := cmp.Diff(want, r.changes()); diff != "" {
		t.Errorf("the other leaves (-want +got):\n%s", diff)
	}
}
