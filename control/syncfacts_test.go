// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/control"
	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane"
)

// fakeObserver notes what it is told, one line for each call.
type fakeObserver struct {
	lines []string
	last  control.SyncFacts
}

func (o *fakeObserver) note(format string, args ...any) {
	o.lines = append(o.lines, fmt.Sprintf(format, args...))
}

func (o *fakeObserver) Queued(f control.QueueFacts) { o.note("queued %v of %v", f.New, f.Pending) }

func (o *fakeObserver) Settled(f control.QueueFacts) {
	o.note("settled %v, queued before: %v", f.New, !f.At.IsZero())
}

func (o *fakeObserver) Synced(f control.SyncFacts) {
	line := "synced"
	for _, part := range []struct {
		is   bool
		text string
	}{{f.Full, " full"}, {f.Drift, " drift"}, {f.Err != nil, " failed"}} {
		if part.is {
			line += part.text
		}
	}
	o.note("%s %v, %d triggers, pending %v", line, f.Families, len(f.Triggers), f.Pending)
	o.last = f
}

func (r *rig) expectTold(what string, lines ...string) {
	r.Helper()
	if diff := cmp.Diff(lines, r.observer.lines); diff != "" {
		r.Errorf("%s: the observer was told (-want +got):\n%s", what, diff)
	}
	r.observer.lines = nil
}

// slice is one of Service a with an endpoint, written for a change that happened at
// the given time.
func slice(addr string, triggered time.Time) convert.Change {
	s := &convert.Slice{
		Name: convert.Name{Namespace: "ns", Name: "a-1"}, Service: "a", Family: dataplane.IPv4, Triggered: triggered,
		Ports: []convert.Port{{Protocol: dataplane.TCP, Port: 8080}},
		Endpoints: []convert.Endpoint{{
			Addr: netip.MustParseAddr(addr), Conditions: convert.Conditions{Ready: true, Serving: true},
		}},
	}
	return convert.Change{Key: s.Key(), Object: s}
}

func TestObserverIsTold(t *testing.T) {
	t.Parallel()
	run(t, nil, func(r *rig) {
		started := r.clock.Now()
		r.send(synced(service("a", "172.30.0.1"), slice("10.0.0.1", started.Add(-time.Hour))))
		r.expectTold("at the start, what happened before does not count",
			"queued {1 1} of {1 1}", "synced full [IPv4 IPv6], 0 triggers, pending {0 0}")

		r.pass(time.Second)
		r.send(synced(slice("10.0.0.2", r.clock.Now())))
		r.expectTold("an endpoint", "queued {0 1} of {0 1}", "synced [IPv4], 1 triggers, pending {0 0}")

		r.send(synced(gone(slice("10.0.0.2", r.clock.Now()))))
		r.send(synced(service("b", "172.30.0.2")))
		r.expectTold("within the minimum pause", "queued {0 1} of {0 1}", "queued {1 0} of {1 1}")
		r.pass(time.Second)
		r.expectTold("after it; a slice that is gone has no time", "synced [IPv4], 0 triggers, pending {0 0}")

		r.pass(time.Second)
		r.send(synced(gone(slice("10.0.0.2", r.clock.Now()))))
		r.expectTold("nothing that matters", "settled {0 1}, queued before: false")
		r.send(synced(service("b", "172.30.0.2")))
		r.expectTold("the same again", "queued {1 0} of {1 0}", "settled {0 0}, queued before: true")
	})
}

func TestObserverIsToldOfFailures(t *testing.T) {
	t.Parallel()
	run(t, nil, func(r *rig) {
		r.send(synced(service("a", "172.30.0.1")))
		r.pass(time.Second)
		r.observer.lines = nil
		r.syncer.err = errors.New("no space left")
		r.send(synced(slice("10.0.0.1", r.clock.Now())))
		r.expectTold("fails", "queued {0 1} of {0 1}", "synced failed [IPv4], 0 triggers, pending {0 0}")
		r.syncer.err = nil
		r.pass(100 * time.Millisecond)
		r.expectTold("works: the change is programmed only now", "synced full [IPv4 IPv6], 1 triggers, pending {0 0}")
		if took := r.observer.last.Start.Sub(r.observer.last.Triggers[0].At); took != 100*time.Millisecond {
			r.Errorf("programmed after %s", took)
		}
		r.drift <- struct{}{}
		synctest.Wait()
		r.pass(time.Second)
		r.expectTold("drift", "queued {0 0} of {0 0}", "synced full drift [IPv4 IPv6], 0 triggers, pending {0 0}")
	})
}

func TestServicesWithoutLocalEndpointsAreCounted(t *testing.T) {
	t.Parallel()
	run(t, nil, func(r *rig) {
		external := service("a", "172.30.0.1")
		external.Object.(*convert.Service).Traffic = &convert.Traffic{ExternalLocal: true, InternalLocal: true}
		external.Object.(*convert.Service).Ports[0].NodePort = 30080
		r.send(synced(external))
		want := func(what string, n int) {
			r.Helper()
			counts := map[dataplane.Family]int{}
			if n > 0 {
				counts[dataplane.IPv4] = n
			}
			if diff := cmp.Diff(control.NoLocal{Internal: counts, External: counts}, r.observer.last.NoLocal); diff != "" {
				r.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		want("no endpoints at all", 0)
		r.pass(time.Second)
		r.send(synced(slice("10.0.0.1", time.Time{})))
		want("one elsewhere", 1)
		r.pass(time.Second)
		here := slice("10.0.0.1", time.Time{})
		here.Object.(*convert.Slice).Endpoints[0].Local = true
		r.send(synced(here))
		want("one here", 0)
		r.pass(time.Second)
		r.send(synced(slice("10.0.0.1", time.Time{})))
		r.pass(time.Second)
		r.send(synced(gone(external)))
		want("no Service", 0)
	})
}
