// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/control"
	"github.com/veridict/veridict/control/config"
	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/health"
	"github.com/veridict/veridict/control/source"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/runner/runnertest"
)

// fakeSource hands over what the test sends.
type fakeSource struct{ batches chan source.Batch }

func (s *fakeSource) Run(ctx context.Context, handle source.Handler) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case batch := <-s.batches:
			handle(batch)
		}
	}
}

func (s *fakeSource) Load(ctx context.Context, handle source.Handler) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case batch := <-s.batches:
		handle(batch)
		return nil
	}
}

// fakeSyncer notes its calls and holds what it was told.
type fakeSyncer struct {
	calls []string
	held  map[dataplane.ServicePortKey]dataplane.ServicePort
	err   error
	// due is from the time of the call.
	due      time.Duration
	clock    *runnertest.Clock
	rejected []dataplane.Rejection
}

func (s *fakeSyncer) Reset(_ context.Context, state dataplane.State) (dataplane.Report, error) {
	s.calls = append(s.calls, "reset "+names(state.ServicePorts))
	s.held = state.ServicePorts
	return s.report()
}

func (s *fakeSyncer) Sync(_ context.Context, update dataplane.Update) (dataplane.Report, error) {
	changed := map[dataplane.ServicePortKey]dataplane.ServicePort{}
	for _, sp := range update.Changed {
		s.held[sp.Key] = sp
		changed[sp.Key] = sp
	}
	call := strings.TrimSpace("sync " + names(changed))
	for _, key := range update.Removed {
		delete(s.held, key)
		call += " -" + key.Name
	}
	if update.Settings != nil {
		call += " settings"
	}
	s.calls = append(s.calls, call)
	return s.report()
}

func (s *fakeSyncer) report() (dataplane.Report, error) {
	if s.err != nil {
		return dataplane.Report{}, s.err
	}
	r := dataplane.Report{Programmed: dataplane.Counts{ServicePorts: len(s.held)}, Rejected: s.rejected}
	if s.due > 0 {
		r.Due = s.clock.Now().Add(s.due)
	}
	return r, nil
}

func names(ports map[dataplane.ServicePortKey]dataplane.ServicePort) string {
	var all []string
	for _, name := range []string{"a", "b", "c"} {
		for key := range ports {
			if key.Name == name {
				all = append(all, name)
			}
		}
	}
	return strings.Join(all, " ")
}

// rig is a controller that runs in a bubble, with everything around it fake.
type rig struct {
	*testing.T
	source fakeSource
	syncer fakeSyncer
	clock  *runnertest.Clock
	drift  chan struct{}
	log    bytes.Buffer
	// observer is told what the controller does.
	observer fakeObserver
	events   fakeEvents
	health   *health.Proxy
}

// fakeEvents remembers what it was told.
type fakeEvents struct {
	problems [][]convert.Problem
	failures []string
}

func (e *fakeEvents) SetProblems(problems []convert.Problem) {
	e.problems = append(e.problems, problems)
}

func (e *fakeEvents) SetFailure(err error) { e.failures = append(e.failures, fmt.Sprint(err)) }

func newRig(t *testing.T) *rig {
	r := &rig{T: t, clock: runnertest.NewClock(), drift: make(chan struct{}, 1)}
	r.source.batches = make(chan source.Batch, 1)
	r.syncer.clock = r.clock
	r.health = health.NewProxy(time.Minute, r.clock.Now)
	return r
}

func (r *rig) controller(change func(*config.Config)) *control.Controller {
	cfg := config.Config{NodeName: "me", MinSyncPeriod: time.Second, SyncPeriod: 30 * time.Second}
	if change != nil {
		change(&cfg)
	}
	return control.New(control.Options{
		Config: cfg, Source: &r.source, Syncer: &r.syncer, Clock: r.clock, Drift: r.drift, Observer: &r.observer,
		Events: &r.events, Health: r.health,
		Logger: slog.New(slog.NewTextHandler(&r.log, nil)),
	})
}

// run tests with a controller that follows the source.
func run(t *testing.T, change func(*config.Config), do func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error)
		controller := r.controller(change)
		go func() { ended <- controller.Run(ctx) }()
		synctest.Wait()
		do(r)
		stop := errors.New("stop")
		cancel(stop)
		if err := <-ended; !errors.Is(err, stop) {
			t.Errorf("Run returned %v, want the cause", err)
		}
	})
}

func (r *rig) send(batch source.Batch) {
	r.source.batches <- batch
	synctest.Wait()
}

func (r *rig) pass(d time.Duration) {
	r.clock.Advance(d)
	synctest.Wait()
}

// expect compares the calls since the last time.
func (r *rig) expect(what string, calls ...string) {
	r.Helper()
	if diff := cmp.Diff(calls, r.syncer.calls); diff != "" {
		r.Errorf("%s: calls (-want +got):\n%s", what, diff)
	}
	r.syncer.calls = nil
}

func synced(changes ...convert.Change) source.Batch {
	return source.Batch{Changes: changes, Synced: true}
}

func service(name, ip string) convert.Change {
	s := &convert.Service{
		Name: convert.Name{Namespace: "ns", Name: name}, IPv4: netip.MustParseAddr(ip),
		Ports: []convert.Port{{Protocol: dataplane.TCP, Port: 80}},
	}
	return convert.Change{Key: s.Key(), Object: s, Origin: name + ".yaml"}
}

func gone(change convert.Change) convert.Change {
	change.Object = nil
	return change
}

func TestNothingBeforeTheSourceIsComplete(t *testing.T) {
	t.Parallel()
	run(t, nil, func(r *rig) {
		r.send(source.Batch{Changes: []convert.Change{service("a", "172.30.0.1")}, Problems: []convert.Problem{{File: "dir", Message: "waiting"}}})
		r.drift <- struct{}{}
		r.pass(time.Minute)
		r.expect("not synced")
		r.send(synced(service("b", "172.30.0.2")))
		r.pass(time.Second)
		r.expect("synced", "reset a b")
	})
}

func TestChangesAreCoalesced(t *testing.T) {
	t.Parallel()
	run(t, nil, func(r *rig) {
		a, b := service("a", "172.30.0.1"), service("b", "172.30.0.2")
		r.send(synced(a))
		r.expect("first", "reset a")
		r.send(synced(b))
		r.send(synced(gone(a)))
		r.send(synced(service("c", "172.30.0.3")))
		r.send(synced(gone(b)))
		r.expect("within the minimum pause")
		r.pass(time.Second)
		r.expect("after it", "sync c -a")
		r.pass(time.Minute)
		r.send(synced())
		r.expect("a batch without changes")
		if n := strings.Count(r.log.String(), "level=INFO msg=synced"); n != 2 {
			r.Errorf("%d lines about syncs, want 2:\n%s", n, r.log.String())
		}
	})
}

func TestErrorLosesNothing(t *testing.T) {
	t.Parallel()
	run(t, nil, func(r *rig) {
		r.send(synced(service("a", "172.30.0.1")))
		r.expect("first", "reset a")
		r.pass(time.Second)
		r.syncer.err = errors.New("no space left")
		r.send(synced(service("b", "172.30.0.2")))
		r.expect("fails", "sync b")
		r.pass(100 * time.Millisecond)
		r.expect("fails again", "reset a b")
		r.syncer.err = nil
		r.pass(200 * time.Millisecond)
		r.expect("works", "reset a b")
		r.pass(time.Minute)
		r.send(synced(service("c", "172.30.0.3")))
		r.expect("goes on with changes", "sync c")
		if n := strings.Count(r.log.String(), `err="no space left"`); n != 2 {
			r.Errorf("the cause was logged %d times, want 2:\n%s", n, r.log.String())
		}
	})
}

func TestHousekeepingIsDoneWhenDue(t *testing.T) {
	t.Parallel()
	run(t, nil, func(r *rig) {
		r.syncer.due = 300 * time.Millisecond
		r.send(synced(service("a", "172.30.0.1")))
		r.pass(200 * time.Millisecond)
		r.expect("not due", "reset a")
		r.syncer.due = 0
		r.pass(100 * time.Millisecond)
		r.expect("due", "sync")
		r.pass(time.Minute)
		r.expect("done")
	})
}

func TestDriftIsRepairedAtOnce(t *testing.T) {
	t.Parallel()
	run(t, nil, func(r *rig) {
		r.send(synced(service("a", "172.30.0.1")))
		r.expect("first", "reset a")
		r.drift <- struct{}{}
		synctest.Wait()
		r.expect("drift", "reset a")
		r.drift <- struct{}{}
		synctest.Wait()
		r.expect("somebody who does not stop is not followed without pause")
		r.pass(time.Second)
		r.expect("after the pause", "reset a")
	})
}

func TestSettingsFollowTheNode(t *testing.T) {
	t.Parallel()
	run(t, func(c *config.Config) { c.NodeCIDR = true }, func(r *rig) {
		r.send(synced())
		r.expect("no node", "reset ")
		if !strings.Contains(r.log.String(), "no local pods are recognised") {
			r.Errorf("log:\n%s", r.log.String())
		}
		r.pass(time.Second)
		for _, name := range []string{"other", "me"} {
			node := &convert.Node{Name: name, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}
			r.send(synced(convert.Change{Key: node.Key(), Object: node}))
		}
		r.expect("node", "sync settings")
	})
}

func TestProblemsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	run(t, nil, func(r *rig) {
		problem := convert.Problem{File: "a.yaml", Object: "Service ns/a", Field: "spec", Message: "is odd"}
		batch := synced(service("a", "172.30.0.1"), service("b", "172.30.0.1"))
		batch.Problems = []convert.Problem{problem}
		r.syncer.rejected = []dataplane.Rejection{{Err: errors.New("refused")}}
		r.send(batch)
		r.send(batch)
		r.pass(time.Second)
		r.send(source.Batch{Synced: true})
		r.send(batch)
		for text, want := range map[string]int{
			`file=a.yaml object="Service ns/a" field=spec problem="is odd"`: 2, "taken by the older Service ns/a": 1, "refused it: refused": 1,
		} {
			if got := strings.Count(r.log.String(), text); got != want {
				r.Errorf("%q is logged %d times, want %d:\n%s", text, got, want, r.log.String())
			}
		}
	})
}

// TestOperatorsAreTold has problems and failures become events, and outages reach
// whoever asks for the health.
func TestOperatorsAreTold(t *testing.T) {
	t.Parallel()
	run(t, nil, func(r *rig) {
		problem := convert.Problem{Object: "Service ns/a", Message: "is odd"}
		batch := synced(service("a", "172.30.0.1"))
		batch.Problems = []convert.Problem{problem}
		batch.Outages = []string{"the API server cannot be reached"}
		r.send(batch)
		r.send(batch)
		if diff := cmp.Diff([][]convert.Problem{{problem}}, r.events.problems); diff != "" {
			r.Errorf("problems (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"<nil>"}, r.events.failures); diff != "" {
			r.Errorf("failures (-want +got):\n%s", diff)
		}
		page := func() string {
			recorder := httptest.NewRecorder()
			r.health.Handler(nil).ServeHTTP(recorder, httptest.NewRequestWithContext(r.Context(), http.MethodGet, "/healthz", nil))
			return recorder.Body.String()
		}
		if body := page(); !strings.Contains(body, batch.Outages[0]) || !strings.Contains(body, `"nodeEligible":true`) {
			r.Errorf("healthz: %s", body)
		}
		node := &convert.Node{Name: "me", Leaving: true}
		r.send(synced(convert.Change{Key: node.Key(), Object: node}))
		if body := page(); strings.Contains(body, "outages") || !strings.Contains(body, `"nodeEligible":false`) {
			r.Errorf("healthz of a node that leaves: %s", body)
		}
		r.send(synced(convert.Change{Key: node.Key(), Object: &convert.Node{Name: "me"}}))
		if body := page(); !strings.Contains(body, `"nodeEligible":true`) {
			r.Errorf("healthz of a node that stays: %s", body)
		}
		r.send(synced(convert.Change{Key: node.Key()}))
		if body := page(); !strings.Contains(body, `"nodeEligible":false`) {
			r.Errorf("healthz of a node that is gone: %s", body)
		}
	})
}

func TestRunOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.source.batches <- synced(service("a", "172.30.0.1"), service("b", "172.30.0.1"))
		r.syncer.due = time.Hour
		result, err := r.controller(nil).RunOnce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.expect("once", "reset a")
		if result.Report.Programmed.ServicePorts != 1 || len(result.Problems) != 1 || result.Problems[0].File != "b.yaml" {
			t.Errorf("result: %+v", result)
		}

		r.syncer.err = errors.New("not permitted")
		r.source.batches <- synced()
		if _, err := r.controller(nil).RunOnce(t.Context()); !errors.Is(err, r.syncer.err) {
			t.Errorf("error %v, want the cause", err)
		}
	})
}

func TestRunOnceWaitsForHousekeeping(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.source.batches <- synced(service("a", "172.30.0.1"))
		r.syncer.due = 100 * time.Millisecond
		ended := make(chan error)
		controller := r.controller(nil)
		go func() {
			_, err := controller.RunOnce(t.Context())
			ended <- err
		}()
		synctest.Wait()
		r.expect("programmed", "reset a")
		r.syncer.due = 0
		r.clock.Advance(100 * time.Millisecond)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		r.expect("tidied", "sync")
	})
}

func TestLoad(t *testing.T) {
	t.Parallel()
	src := &fakeSource{batches: make(chan source.Batch, 1)}
	src.batches <- source.Batch{
		Changes: []convert.Change{service("a", "172.30.0.1"), service("b", "172.30.0.1")}, Problems: []convert.Problem{{Message: "x"}}, Synced: true,
	}
	state, problems, err := control.Load(t.Context(), src, config.Config{MasqueradeAll: true}, nil)
	if err != nil || names(state.ServicePorts) != "a" || !state.Settings.MasqueradeAll || len(problems) != 2 {
		t.Errorf("Load: %+v, %v, %v", state, problems, err)
	}
}
