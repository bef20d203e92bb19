// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
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

// refusing returns a Refuse that refuses additions whose element ends in one of
// the suffixes.
func refusing(suffixes ...string) func(Commit) error {
	return func(c Commit) error {
		for _, change := range c.Changes {
			for _, suffix := range suffixes {
				if !change.Delete && strings.HasSuffix(change.Element, suffix) {
					return syscall.EINVAL
				}
			}
		}
		return nil
	}
}

// manyServicePorts returns n ServicePorts of three endpoints. That of number bad
// has the endpoint 10.9.9.9:8080.
func manyServicePorts(n, bad int) []dataplane.ServicePort {
	var list []dataplane.ServicePort
	for i := range n {
		endpoints := remote(3*i, 3)
		if i == bad {
			endpoints[0] = "10.9.9.9:8080"
		}
		list = append(list, servicePort(fmt.Sprintf("s%d", i), fmt.Sprintf("172.30.1.%d:80/tcp", i), endpoints...))
	}
	return list
}

func TestOneGuiltyServicePortIsRejected(t *testing.T) {
	for _, batch := range []int{1, 40, 4000} {
		for _, start := range []string{"reset", "sync"} {
			t.Run(fmt.Sprintf("%s with batches of %d", start, batch), func(t *testing.T) {
				fake := NewFake()
				fake.Refuse = refusing("10.9.9.9 . 8080")
				s := fake.NewSyncer(Options{BatchElements: batch, Now: newClock().now})
				list := manyServicePorts(100, 37)
				var report dataplane.Report
				if start == "reset" {
					report = mustReset(t, s, stateOf(dataplane.Settings{}, list...))
				} else {
					mustReset(t, s, stateOf(dataplane.Settings{}))
					report = mustSync(t, s, dataplane.Update{Changed: list})
				}
				if len(report.Rejected) != 1 || report.Rejected[0].Key != list[37].Key {
					t.Fatalf("rejected: %v, want s37 alone", report.Rejected)
				}
				err := report.Rejected[0].Err
				if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "172.30.1.37") {
					t.Errorf("rejected with %q, want EINVAL and an element of the VIP", err)
				}
				if got := report.Programmed; got.ServicePorts != 99 || got.Endpoints != 297 {
					t.Errorf("programmed %d ServicePorts and %d endpoints, want 99 and 297", got.ServicePorts, got.Endpoints)
				}
				without := append(list[:37:37], list[38:]...)
				fresh := NewFake()
				mustReset(t, fresh.NewSyncer(Options{}), stateOf(dataplane.Settings{}, without...))
				if diff := cmp.Diff(dumpOf(fresh), dumpOf(fake)); diff != "" {
					t.Errorf("tables (-without s37 +got):\n%s", diff)
				}
			})
		}
	}
}

// The guilty one of 100 is found by halving.
func TestTheGuiltyOneIsFoundByHalving(t *testing.T) {
	fake := NewFake()
	s := fake.NewSyncer(Options{Now: newClock().now})
	mustReset(t, s, stateOf(dataplane.Settings{}))
	fake.Refuse = refusing("10.9.9.9 . 8080")
	report := mustSync(t, s, dataplane.Update{Changed: manyServicePorts(100, 37)})
	// Each of at most 7 halvings sends two halves; one chain was added.
	if limit := 1 + 2*7 + 1; report.Transactions > limit {
		t.Errorf("%d transactions, want at most %d", report.Transactions, limit)
	}
}

func TestRejectedServicePortsAreTriedAgain(t *testing.T) {
	cases := map[string]dataplane.ServicePort{
		"IPv4": servicePort("web", "172.30.0.1:80/tcp", "10.9.9.9:8080"),
		"IPv6": servicePort("web", "[fd00:30::1]:80/tcp", "[fd00::9]:8080"),
	}
	for name, sp := range cases {
		t.Run(name, func(t *testing.T) {
			clock, fake := newClock(), NewFake()
			s := fake.NewSyncer(Options{Now: clock.now})
			mustReset(t, s, stateOf(dataplane.Settings{}))
			last, delays := clock.now(), []time.Duration{}
			fake.Refuse = func(c Commit) error {
				err := refusing("9 . 8080")(c)
				if err != nil {
					delays = append(delays, clock.now().Sub(last)/time.Second)
					last = clock.now()
				}
				return err
			}
			report := mustSync(t, s, dataplane.Update{Changed: []dataplane.ServicePort{sp}})
			for len(delays) < 12 && len(report.Rejected) == 1 {
				clock.time = report.Due
				report = mustSync(t, s, dataplane.Update{})
			}
			if diff := cmp.Diff([]time.Duration{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300}, delays); diff != "" {
				t.Errorf("seconds between tries (-want +got):\n%s", diff)
			}
			fake.Refuse = nil
			clock.advance(lastRetry)
			report = mustSync(t, s, dataplane.Update{})
			if len(report.Rejected) != 0 || report.Programmed.ServicePorts != 1 {
				t.Errorf("rejected %v, programmed %+v, want all programmed", report.Rejected, report.Programmed)
			}
		})
	}
}

// A refused ServicePort that goes away must not leave behind whoever had its VIP
// before, although that one was removed while it still had to serve.
func TestRejectedHandoverThatIsCalledOff(t *testing.T) {
	const vip = "172.30.0.1:80/tcp"
	clock, fake := newClock(), NewFake()
	s := fake.NewSyncer(Options{Now: clock.now})
	first, second := servicePort("first", vip, remote(0, 2)...), servicePort("second", vip, "10.9.9.9:8080")
	mustReset(t, s, stateOf(dataplane.Settings{}, first))
	fake.Refuse = refusing("10.9.9.9 . 8080")
	mustSync(t, s, dataplane.Update{Changed: []dataplane.ServicePort{second}, Removed: []dataplane.ServicePortKey{first.Key}})
	report := mustSync(t, s, dataplane.Update{Removed: []dataplane.ServicePortKey{second.Key}})
	for !report.Due.IsZero() {
		clock.time = report.Due
		report = mustSync(t, s, dataplane.Update{})
	}
	if len(report.Rejected) != 0 || report.Programmed.Elements != 0 {
		t.Errorf("rejected %v, %d elements left, want none", report.Rejected, report.Programmed.Elements)
	}
}

// A ServicePort that comes back to the VIP which the refused one was to get is
// known there, so that its removal removes the VIP.
func TestRejectedHandoverThatIsTakenBack(t *testing.T) {
	const vip, other = "172.30.0.1:80/tcp", "172.30.0.2:80/tcp"
	clock, fake := newClock(), NewFake()
	s := fake.NewSyncer(Options{Now: clock.now})
	first, second := servicePort("first", vip, remote(0, 2)...), servicePort("second", vip, "10.9.9.9:8080")
	mustReset(t, s, stateOf(dataplane.Settings{}, first))
	fake.Refuse = refusing("10.9.9.9 . 8080")
	moved := servicePort("first", other, remote(0, 2)...)
	mustSync(t, s, dataplane.Update{Changed: []dataplane.ServicePort{moved, second}})
	mustSync(t, s, dataplane.Update{Changed: []dataplane.ServicePort{first}, Removed: []dataplane.ServicePortKey{second.Key}})
	report := mustSync(t, s, dataplane.Update{Removed: []dataplane.ServicePortKey{first.Key}})
	for !report.Due.IsZero() {
		clock.time = report.Due
		report = mustSync(t, s, dataplane.Update{})
	}
	if len(report.Rejected) != 0 || report.Programmed.Elements != 0 {
		t.Errorf("rejected %v, %d elements left, want none", report.Rejected, report.Programmed.Elements)
	}
}

// A VIP that was found in the kernel and whose ServicePort is refused stays known
// until the ServicePort is taken.
func TestRejectedWhileTheKernelHoldsTheVIP(t *testing.T) {
	const vip = "172.30.0.1:80/tcp"
	clock, fake := newClock(), NewFake()
	mustReset(t, fake.NewSyncer(Options{Now: clock.now}), stateOf(dataplane.Settings{}, servicePort("web", vip)))
	fake.Refuse = refusing("10.9.9.9 . 8080")
	s := fake.NewSyncer(Options{Now: clock.now})
	want := stateOf(dataplane.Settings{}, servicePort("web", vip, "10.9.9.9:8080"))
	report := mustReset(t, s, want)
	if len(report.Rejected) != 1 {
		t.Fatalf("rejected %v, want one", report.Rejected)
	}
	clock.advance(100 * time.Millisecond)
	mustSync(t, s, dataplane.Update{})
	fake.Refuse = nil
	clock.advance(time.Second)
	mustSync(t, s, dataplane.Update{})
	fresh := NewFake()
	mustReset(t, fresh.NewSyncer(Options{}), want)
	if diff := cmp.Diff(dumpOf(fresh), dumpOf(fake)); diff != "" {
		t.Errorf("tables (-fresh +got):\n%s", diff)
	}
}

// Leftovers that cannot be deleted belong to no ServicePort: Reset fails.
func TestLeftoversThatStay(t *testing.T) {
	fake := NewFake()
	mustReset(t, fake.NewSyncer(Options{}), stateOf(dataplane.Settings{}, servicePort("web", "172.30.0.1:80/tcp")))
	fake.Refuse = func(c Commit) error {
		if slices.ContainsFunc(c.Changes, func(e ElementChange) bool { return e.Delete && e.Set == clusterIPs }) {
			return syscall.EINVAL
		}
		return nil
	}
	s := fake.NewSyncer(Options{})
	if _, err := s.Reset(t.Context(), stateOf(dataplane.Settings{})); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("reset: %v, want EINVAL", err)
	}
	if _, err := s.Sync(t.Context(), dataplane.Update{}); err == nil {
		t.Error("sync after a failed reset succeeded")
	}
	fake.Refuse = nil
	if report := mustReset(t, s, stateOf(dataplane.Settings{})); report.Programmed.Elements != 0 {
		t.Errorf("%d elements left, want none", report.Programmed.Elements)
	}
}

// Rows that were added before one was refused do not wait for the next try.
func TestRowsOfARejectedServicePortLeave(t *testing.T) {
	r := newRig(t, Options{BatchElements: 1})
	r.fake.Refuse = refusing("10.9.9.9 . 8080")
	report := r.change(servicePort("web", webVIP, append(remote(0, 2), "10.9.9.9:8080")...))
	if len(report.Rejected) != 1 || report.Programmed.Elements != 2 {
		t.Fatalf("rejected %v, %d elements, want one rejection and two rows", report.Rejected, report.Programmed.Elements)
	}
	r.clock.time = report.Due
	report = r.sync(dataplane.Update{})
	if report.Programmed.Elements != 0 {
		t.Errorf("%d elements when the rows were due, want none", report.Programmed.Elements)
	}
}
