// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/veridict/veridict/control/config"
	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/health"
	"github.com/veridict/veridict/control/source"
	"github.com/veridict/veridict/control/tracker"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/runner"
)

// Source is where objects come from.
type Source interface {
	// Load hands over all objects in one batch and returns.
	Load(ctx context.Context, handle source.Handler) error
	// Run hands over all objects and then what changes, until ctx is done.
	Run(ctx context.Context, handle source.Handler) error
}

// Host is the node.
type Host interface {
	// Addresses returns those of all interfaces.
	Addresses() ([]netip.Addr, error)
	// Watch calls handle with the addresses now and whenever they change, until
	// ctx is done.
	Watch(ctx context.Context, handle func([]netip.Addr)) error
}

// HealthChecks answer load balancers.
type HealthChecks interface {
	// Sync replaces the checks, by "namespace/name" of the Service.
	Sync(checks map[string]health.Check)
	// SetAddresses says where to listen: on all addresses if there are none.
	SetAddresses(addresses []netip.Addr)
}

// EventRecorder tells operators what they must act on. Its methods do not block.
type EventRecorder interface {
	// SetProblems takes all problems that there are now.
	SetProblems(problems []convert.Problem)
	// SetFailure takes how the last sync ended, nil for well.
	SetFailure(err error)
}

// Options are what a [Controller] is made of.
type Options struct {
	Config config.Config
	Source Source
	Syncer dataplane.Syncer
	Logger *slog.Logger
	// Clock is the system's clock if nil.
	Clock runner.Clock
	// Host tells the addresses of the node's interfaces. Nil if there are none to
	// know.
	Host Host
	// Checks answers on the healthCheckNodePorts of what is programmed, if set.
	Checks HealthChecks
	// Health is told when changes come and when they are programmed, if set.
	Health *health.Proxy
	// Drift receives when somebody else has changed the dataplane. It may be
	// nil.
	Drift <-chan struct{}
	// Observer is told what comes and what becomes of it, if set.
	Observer SyncObserver
	// Events is told what is wrong, if set.
	Events EventRecorder
}

// Controller keeps a dataplane equal to the objects of a source. It is used for
// one Run or one RunOnce.
type Controller struct {
	o      Options
	runner *runner.Runner

	// mu is never held during a call of the Syncer.
	mu       sync.Mutex
	tracker  *tracker.Tracker
	problems problemList
	// outages are those of the last batch.
	outages []string
	facts   syncFacts
	synced  bool
	// reset says that the next call must hand over the whole state.
	reset bool
	// checked is the version of the health checks that were handed over.
	checked int
	// waiting is since when there has been a change to hand over, zero if there is
	// none.
	waiting time.Time
	done    Facts

	// due belongs to the goroutine that syncs.
	due time.Time
}

// New returns a controller that does nothing yet.
func New(o Options) *Controller {
	if o.Clock == nil {
		o.Clock = runner.RealClock{}
	}
	c := &Controller{o: o, tracker: newTracker(o.Config), problems: problemList{logger: o.Logger, events: o.Events}, reset: true}
	c.facts = syncFacts{observer: o.Observer, problems: &c.problems, started: o.Clock.Now()}
	c.runner = runner.New(runner.Options{
		Run:         c.sync,
		MinInterval: o.Config.MinSyncPeriod,
		RetryMax:    o.Config.SyncPeriod,
		Clock:       o.Clock,
	})
	return c
}

func newTracker(cfg config.Config) *tracker.Tracker {
	return tracker.New(tracker.Options{
		NodeName:      cfg.NodeName,
		LocalDetector: cfg.LocalDetector,
		NodeCIDR:      cfg.NodeCIDR,
		MasqueradeAll: cfg.MasqueradeAll,
		NodeIPs:       cfg.NodeIPs,
		NodePorts:     tracker.NodePorts(cfg.NodePorts),
		Localhost:     cfg.Localhost,
	})
}

// Run follows the source until ctx is done, and then leaves the dataplane as it
// is. The error is the cause of ctx, or the source's.
func (c *Controller) Run(ctx context.Context) error {
	if err := c.loadHostAddresses(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.o.Source.Run(ctx, c.handle) })
	group.Go(func() error { return c.runner.Loop(ctx) })
	group.Go(func() error { return c.followDrift(ctx) })
	if c.o.Host != nil {
		group.Go(func() error { return c.o.Host.Watch(ctx, c.setHostAddresses) })
	}
	return group.Wait()
}

// loadHostAddresses has the first sync know them: it would take NodePorts away
// otherwise.
func (c *Controller) loadHostAddresses() error {
	if c.o.Host == nil {
		return nil
	}
	addrs, err := c.o.Host.Addresses()
	if err != nil {
		return err
	}
	c.setHostAddresses(addrs)
	return nil
}

// setHostAddresses takes the addresses of the node's interfaces.
func (c *Controller) setHostAddresses(addrs []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tracker.SetHostAddresses(addrs)
	if c.synced && c.tracker.Touched() {
		c.queued()
	}
}

// queued has a sync happen.
func (c *Controller) queued() {
	now := c.o.Clock.Now()
	if c.waiting.IsZero() {
		c.waiting = now
	}
	c.facts.queued(now)
	if c.o.Health != nil {
		c.o.Health.Queued()
	}
	c.runner.Trigger()
}

// handle takes a batch of the source.
func (c *Controller) handle(batch source.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tracker.Apply(batch.Changes)
	c.problems.setObjects(batch.Problems, c.tracker.Problems())
	c.facts.batch(batch)
	c.outages = batch.Outages
	if c.o.Health != nil {
		c.o.Health.SetOutages(batch.Outages)
		c.o.Health.SetEligible(c.tracker.NodeEligible())
	}
	if !batch.Synced {
		return
	}
	if !c.synced && c.o.Config.NodeCIDR && !c.tracker.HasNode() {
		c.o.Logger.Warn("no local pods are recognised until the Node is there", "node", c.o.Config.NodeName)
	}
	// A run without work would delay the next one that has some.
	if !c.synced || c.tracker.Touched() {
		c.queued()
	} else {
		c.publishChecks()
		// After a failure they wait for the next try.
		if !c.reset {
			c.facts.settle(time.Time{})
		}
	}
	c.synced = true
}

// followDrift has everything programmed again at once, but not more often than
// a sync may happen.
func (c *Controller) followDrift(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.o.Drift:
		}
		c.o.Logger.Warn("another process has changed the tables of veridict; they are put right")
		c.mu.Lock()
		c.reset = true
		c.facts.drift = true
		c.facts.queued(c.o.Clock.Now())
		c.mu.Unlock()
		if c.o.Health != nil {
			c.o.Health.Queued()
		}
		c.runner.TriggerNow()
		timer := c.o.Clock.NewTimer(c.o.Config.MinSyncPeriod)
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}

// work is what one sync has to hand over.
type work struct {
	// at is when the work was taken: it has all that was queued until then.
	at     time.Time
	reset  bool
	state  dataplane.State
	update dataplane.Update
	facts  SyncFacts
}

// take returns the work that there is, and whether there is any.
func (c *Controller) take() (work, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.synced {
		return work{}, false
	}
	w := work{at: c.o.Clock.Now()}
	waiting := c.waiting
	c.waiting = time.Time{}
	if c.reset {
		c.reset = false
		w.reset, w.state = true, c.tracker.TakeState()
	} else {
		w.update = c.tracker.Take()
		w.update.Seen = waiting
	}
	housekeeping := !c.due.IsZero() && !w.at.Before(c.due)
	if !w.reset && !housekeeping && w.update.Empty() {
		c.facts.settle(w.at)
		return w, false
	}
	w.facts = c.facts.take(&w)
	return w, true
}

// sync is one run of the runner.
func (c *Controller) sync(ctx context.Context) (time.Time, error) {
	w, any := c.take()
	if !any {
		return c.due, nil
	}
	report, err := c.program(ctx, &w)
	if err != nil {
		return time.Time{}, err
	}
	return report.Due, nil
}

// program hands over the work. After an error the next work is a reset.
func (c *Controller) program(ctx context.Context, w *work) (dataplane.Report, error) {
	start := c.o.Clock.Now()
	report, err := c.call(ctx, w)
	took := c.o.Clock.Now().Sub(start)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteFacts(&report, took, err)
	w.facts.Start, w.facts.Took, w.facts.Report, w.facts.Err = start, took, report, err
	defer func() { c.facts.synced(w.facts) }()
	if c.o.Events != nil && ctx.Err() == nil {
		c.o.Events.SetFailure(err)
	}
	if err != nil {
		c.reset = true
		c.due = time.Time{}
		if ctx.Err() == nil {
			c.o.Logger.Error("cannot program the kernel, trying again with everything", "err", err)
		}
		return report, err
	}
	c.due = report.Due
	if c.o.Health != nil {
		c.o.Health.Updated(w.at)
	}
	c.publishChecks()
	c.problems.setRejected(report.Rejected)
	level := slog.LevelInfo
	if !w.reset && w.update.Empty() {
		level = slog.LevelDebug
	}
	c.o.Logger.Log(ctx, level, "synced",
		"servicePorts", report.Programmed.ServicePorts, "endpoints", report.Programmed.Endpoints,
		"elements", report.ElementsSent, "ms", took.Milliseconds())
	return report, nil
}

// publishChecks hands over what has changed of the health checks.
func (c *Controller) publishChecks() {
	if c.o.Checks == nil {
		return
	}
	settings := c.tracker.Settings()
	addresses := settings.NodePortAddresses
	if len(settings.AllAddresses) > 0 {
		addresses = nil
	}
	c.o.Checks.SetAddresses(addresses)
	if version := c.tracker.HealthChecksVersion(); c.checked != version {
		c.checked = version
		checks := make(map[string]health.Check)
		for name, check := range c.tracker.HealthChecks() {
			checks[name.String()] = health.Check(check)
		}
		c.o.Checks.Sync(checks)
	}
}

// call hands the work to the Syncer and lets go of the state, which is large.
func (c *Controller) call(ctx context.Context, w *work) (dataplane.Report, error) {
	if !w.reset {
		return c.o.Syncer.Sync(ctx, w.update)
	}
	state := w.state
	w.state = dataplane.State{}
	return c.o.Syncer.Reset(ctx, state)
}

// allProblems returns what is wrong now.
func (c *Controller) allProblems() []convert.Problem {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problems.all()
}
