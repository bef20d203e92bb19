// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package events_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/events"
	"github.com/veridict/veridict/dataplane/runner/runnertest"
)

// rig runs a recorder against objects in memory.
type rig struct {
	*events.Recorder
	client *fake.Clientset
	clock  *runnertest.Clock
	log    *strings.Builder
}

func inBubble(t *testing.T, node string, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{client: fake.NewClientset(known()...), clock: runnertest.NewClock(), log: &strings.Builder{}}
		r.Recorder = events.New(events.Options{
			Client: r.client, NodeName: node, Logger: slog.New(slog.NewTextHandler(r.log, nil)), Clock: r.clock,
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		test(t, r)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

// written returns "namespace kind name (UID) reason: note" of all events that were asked to be written.
func (r *rig) written() []string {
	synctest.Wait()
	var texts []string
	for _, action := range r.client.Actions() {
		if create, ok := action.(clienttesting.CreateAction); ok {
			event := create.GetObject().(*eventsv1.Event)
			texts = append(texts, fmt.Sprintf("%s %s %s (%s) %s: %s", event.Namespace, event.Regarding.Kind, event.Regarding.Name, event.Regarding.UID,
				event.Reason, event.Note))
		}
	}
	r.client.ClearActions()
	return texts
}

// known are the objects that tests have problems with.
func known() []runtime.Object {
	objects := []runtime.Object{
		&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "u-slice"}},
	}
	names := []string{"web", "mail", "last"}
	for i := range 3 * events.Burst {
		names = append(names, fmt.Sprintf("s%d", i))
	}
	for _, name := range names {
		objects = append(objects, &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("u-" + name)}})
	}
	return objects
}

func bad(name string) convert.Problem {
	return convert.Problem{Object: "Service shop/" + name, Field: "spec.ports[0]", Message: "is odd"}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	inBubble(t, "n1", func(t *testing.T, r *rig) {
		slice := convert.Problem{Object: "EndpointSlice shop/web-1", Message: "odd, too"}
		r.SetProblems([]convert.Problem{bad("web"), slice, {File: "a.yaml", Message: "not an object"}})
		want := []string{"shop Service web (u-web) NotServed: spec.ports[0]: is odd", "shop EndpointSlice web-1 (u-slice) NotServed: odd, too"}
		if diff := cmp.Diff(want, r.written()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		r.SetProblems([]convert.Problem{bad("web"), slice})
		if got := r.written(); len(got) > 0 {
			t.Errorf("told twice: %v", got)
		}
		r.SetProblems(nil)
		r.SetProblems([]convert.Problem{bad("web")})
		if got := r.written(); len(got) != 1 {
			t.Errorf("%d events for a problem that came back", len(got))
		}
		if r.log.Len() > 0 {
			t.Errorf("log: %s", r.log)
		}
	})
}

// TestNodesShareEvents has two nodes see the same mistake.
func TestNodesShareEvents(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, node := range []string{"n1", "n2"} {
		inBubble(t, node, func(t *testing.T, r *rig) {
			r.SetProblems([]convert.Problem{bad("web")})
			synctest.Wait()
			list, err := r.client.EventsV1().Events("shop").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 {
				t.Fatal(err, list)
			}
			names[list.Items[0].Name] = true
		})
	}
	if len(names) != 1 {
		t.Errorf("names %v, want one", names)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	inBubble(t, "n1", func(t *testing.T, r *rig) {
		for range 3 {
			r.SetFailure(errors.New("no memory"))
		}
		r.SetFailure(nil)
		r.SetFailure(errors.New("no memory"))
		want := "default Node n1 (n1) FailedSync: the kernel cannot be programmed, connections to Services go by older rules: no memory"
		if diff := cmp.Diff([]string{want, want}, r.written()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestLimit(t *testing.T) {
	t.Parallel()
	inBubble(t, "n1", func(t *testing.T, r *rig) {
		var problems []convert.Problem
		for i := range 3 * events.Burst {
			problems = append(problems, bad(fmt.Sprintf("s%d", i)))
		}
		r.SetProblems(problems)
		if got := len(r.written()); got != events.Burst {
			t.Errorf("%d events at once, want %d", got, events.Burst)
		}
		r.clock.Advance(time.Minute)
		r.SetProblems(append(problems, bad("last")))
		if got := len(r.written()); got != 1 {
			t.Errorf("%d events after a minute, want 1", got)
		}
	})
}

// TestGone writes nothing about an object that is gone.
func TestGone(t *testing.T) {
	t.Parallel()
	inBubble(t, "n1", func(t *testing.T, r *rig) {
		r.SetProblems([]convert.Problem{bad("gone")})
		if got := r.written(); len(got) > 0 || r.log.Len() > 0 {
			t.Errorf("events %v, log %s", got, r.log)
		}
	})
}

// TestRefusal logs a refusal once.
func TestRefusal(t *testing.T) {
	t.Parallel()
	inBubble(t, "n1", func(t *testing.T, r *rig) {
		r.client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no") })
		r.SetProblems([]convert.Problem{bad("web"), bad("mail")})
		if len(r.written()) != 2 || strings.Count(r.log.String(), "level=WARN") != 1 {
			t.Errorf("log:\n%s", r.log)
		}
	})
}
