// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"time"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/source"
	"github.com/veridict/veridict/dataplane"
)

// SyncObserver is told what comes in and what becomes of it. A [Controller] calls
// it while it holds a lock: its methods must neither wait nor call back.
type SyncObserver interface {
	// Queued is called when there is something to program.
	Queued(QueueFacts)
	// Settled is called when changes turn out to need nothing. At is zero if they
	// were never queued.
	Settled(QueueFacts)
	// Synced is called after each call of the Syncer, also a failed one.
	Synced(SyncFacts)
}

// QueueFacts say what came to be programmed.
type QueueFacts struct {
	At time.Time
	// New are the changes that came since the last call, Pending all that wait.
	New, Pending ChangeCounts
	Problems     ProblemCounts
}

// ChangeCounts are numbers of changed objects.
type ChangeCounts struct{ Services, EndpointSlices int }

func (c *ChangeCounts) add(o ChangeCounts) {
	c.Services += o.Services
	c.EndpointSlices += o.EndpointSlices
}

// SyncFacts say what one call of the Syncer did.
type SyncFacts struct {
	// Full says that the whole state was handed over; Drift that this was since
	// another process had changed the tables.
	Full, Drift bool
	// Families are those that something was handed over of. None, if the call was
	// only about what is no longer used.
	Families []dataplane.Family
	Start    time.Time
	Took     time.Duration
	// Triggers are what is programmed now and was not before. Nil after an error.
	Triggers []Trigger
	// Pending are the changes that came during the call.
	Pending ChangeCounts
	// NoLocal counts ServicePorts that lack endpoints on this node.
	NoLocal  NoLocal
	Problems ProblemCounts
	Report   dataplane.Report
	Err      error
}

// Trigger is a change of the world that made the control plane write an
// EndpointSlice.
type Trigger struct {
	Family dataplane.Family
	// At is the slice's annotation endpoints.kubernetes.io/last-change-trigger-time.
	At time.Time
}

// ProblemCounts are numbers of what is not served as written.
type ProblemCounts struct {
	// Objects have mistakes; Rejected are ServicePorts that the kernel refused.
	Objects, Rejected int
}

// NoLocal counts, by family, the ServicePorts that have endpoints, but none on this
// node, though a traffic policy is Local: that for internal or that for external
// traffic.
type NoLocal struct{ Internal, External map[dataplane.Family]int }

// maxTriggers bounds how many triggers wait for the end of a failure.
const maxTriggers = 10000

// syncFacts collects the facts between two syncs. The Controller's lock guards it.
type syncFacts struct {
	observer SyncObserver
	problems *problemList
	// started is when the collecting began. What was triggered before is not
	// counted: its latency would be that of a restart.
	started time.Time
	// fresh are the changes that the observer was not told of, pending those that
	// were not handed to the Syncer.
	fresh, pending ChangeCounts
	triggers       []Trigger
	drift          bool
	noLocal        map[dataplane.ServicePortKey]policies
}

// policies are the traffic policies of a ServicePort that find no endpoint.
type policies struct{ internal, external bool }

// batch counts what a batch changes.
func (f *syncFacts) batch(batch source.Batch) {
	if f.observer == nil {
		return
	}
	var changes ChangeCounts
	for _, change := range batch.Changes {
		switch change.Key.Kind {
		case convert.KindService:
			changes.Services++
		case convert.KindEndpointSlice:
			changes.EndpointSlices++
			f.trigger(change.Object)
		}
	}
	f.fresh.add(changes)
	f.pending.add(changes)
}

// trigger notes the time of a slice's annotation. A slice that is gone has none:
// what stands in it is the time of the change before.
func (f *syncFacts) trigger(object convert.Object) {
	slice, ok := object.(*convert.Slice)
	if !ok || slice == nil || !slice.Triggered.After(f.started) || len(f.triggers) >= maxTriggers {
		return
	}
	f.triggers = append(f.triggers, Trigger{Family: slice.Family, At: slice.Triggered})
}

// queued notes that there is something to program.
func (f *syncFacts) queued(now time.Time) {
	if f.observer != nil {
		f.observer.Queued(QueueFacts{At: now, New: f.fresh, Pending: f.pending, Problems: f.problems.counts()})
		f.fresh = ChangeCounts{}
	}
}

// settle notes that nothing has to be programmed for the changes that wait. at is
// zero if they were never queued.
func (f *syncFacts) settle(at time.Time) {
	f.triggers, f.pending = nil, ChangeCounts{}
	if f.observer != nil {
		f.observer.Settled(QueueFacts{At: at, New: f.fresh, Problems: f.problems.counts()})
		f.fresh = ChangeCounts{}
	}
}

// take returns the facts of the work that is handed over now.
func (f *syncFacts) take(w *work) SyncFacts {
	facts := SyncFacts{Full: w.reset, Drift: f.drift && w.reset, Families: w.families(), Triggers: f.triggers}
	if w.reset {
		f.drift = false
	}
	f.triggers, f.pending = nil, ChangeCounts{}
	if f.observer != nil {
		f.countNoLocal(w)
	}
	return facts
}

// synced completes the facts and hands them over.
func (f *syncFacts) synced(facts SyncFacts) {
	if f.observer == nil {
		return
	}
	if facts.Err != nil {
		f.triggers = append(facts.Triggers, f.triggers...)
		facts.Triggers = nil
	}
	facts.Pending = f.pending
	facts.NoLocal = f.noLocalCounts()
	facts.Problems = f.problems.counts()
	f.observer.Synced(facts)
}

// families returns those that the work is about.
func (w *work) families() []dataplane.Family {
	both := []dataplane.Family{dataplane.IPv4, dataplane.IPv6}
	if w.reset || w.update.Settings != nil {
		return both
	}
	touched := map[dataplane.Family]bool{}
	for i := range w.update.Changed {
		touched[w.update.Changed[i].Key.Family] = true
	}
	for _, key := range w.update.Removed {
		touched[key.Family] = true
	}
	families := both[:0]
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		if touched[family] {
			families = append(families, family)
		}
	}
	return families
}

// countNoLocal follows the work. A failed call is followed by one with the whole
// state, which counts anew.
func (f *syncFacts) countNoLocal(w *work) {
	if w.reset {
		f.noLocal = make(map[dataplane.ServicePortKey]policies)
		for _, sp := range w.state.ServicePorts {
			f.setNoLocal(&sp)
		}
		return
	}
	for i := range w.update.Changed {
		f.setNoLocal(&w.update.Changed[i])
	}
	for _, key := range w.update.Removed {
		delete(f.noLocal, key)
	}
}

func (f *syncFacts) setNoLocal(sp *dataplane.ServicePort) {
	lacks := len(sp.LocalEndpoints) == 0 && len(sp.Endpoints) > 0
	p := policies{internal: lacks && sp.InternalLocal, external: lacks && sp.External != nil && sp.External.Local}
	if p == (policies{}) {
		delete(f.noLocal, sp.Key)
		return
	}
	f.noLocal[sp.Key] = p
}

func (f *syncFacts) noLocalCounts() NoLocal {
	counts := NoLocal{Internal: map[dataplane.Family]int{}, External: map[dataplane.Family]int{}}
	for key, p := range f.noLocal {
		if p.internal {
			counts.Internal[key.Family]++
		}
		if p.external {
			counts.External[key.Family]++
		}
	}
	return counts
}
