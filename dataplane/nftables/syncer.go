// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/veridict/veridict/dataplane"
)

// Options are the settings of a Syncer. The zero value is usable.
type Options struct {
	// Layout is MarkFree if empty.
	Layout Layout
	// Logger is discarded if nil.
	Logger *slog.Logger
	// SurplusDelay is how long rows stay after the last verdict that drew
	// their bucket is gone: longer than a packet takes from one lookup to the
	// next. 100 ms if zero; negative removes them in the same transaction,
	// which loses connections and exists for the test that shows it.
	SurplusDelay time.Duration
	// ChainDelay is how long an unused dispatch chain stays. One minute if
	// zero. Kernels before 6.2 refuse to delete a chain in the transaction
	// that stops using it.
	ChainDelay time.Duration
	// BatchElements is the number of elements after which a transaction is
	// closed. 2,000 if zero, about 10 ms of the kernel's commit lock.
	BatchElements int
	// Now is time.Now if nil.
	Now func() time.Time
	// MaxPins is how many clients of ServicePorts with session affinity are
	// remembered, for each protocol and IP family, 262,144 if zero. Clients beyond
	// that are served, but not kept at an endpoint.
	MaxPins int
	// KernelRelease is the kernel that the rules are for, as uname -r prints
	// it; that of the running one if empty. Some kernels need a rule more.
	KernelRelease string
}

func (o Options) withDefaults() Options {
	o.Layout = cmp.Or(o.Layout, MarkFree)
	o.SurplusDelay = cmp.Or(o.SurplusDelay, 100*time.Millisecond)
	o.ChainDelay = cmp.Or(o.ChainDelay, time.Minute)
	o.BatchElements = cmp.Or(o.BatchElements, 2000)
	o.MaxPins = cmp.Or(o.MaxPins, 262144)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.KernelRelease == "" {
		o.KernelRelease = runningKernel()
	}
	return o
}

// ruleset returns the structure of the table of family f.
func (o *Options) ruleset(f family, settings *dataplane.Settings) ruleset {
	b := blueprint{
		family: f, layout: o.Layout, settings: settings, maxPins: o.MaxPins,
		repeatLookups: !repeatsLookups(o.KernelRelease),
	}
	return b.ruleset()
}

// Syncer programs the tables of both families.
type Syncer struct {
	options  Options
	log      *slog.Logger
	kernel   kernel
	families []family
	tables   []*table
	// unserved are the ServicePorts of a family that is left out.
	unserved map[dataplane.ServicePortKey]struct{}
	rejected map[frontendID]*rejected
	sweeper  *sweeper
	// own tells Watch which transactions are ours.
	own *ownership

	// refused and report are about the call under way.
	refused map[*transition]struct{}
	report  dataplane.Report
}

var _ dataplane.Syncer = (*Syncer)(nil)

// New returns a Syncer for the network namespace of the calling thread, after
// checking that it can work there; see [Probe]. An IP family that the kernel has no
// nf_tables for is left out, with a warning. Nothing is changed yet.
func New(ctx context.Context, options Options) (*Syncer, error) {
	options = options.withDefaults()
	if err := Probe(ctx); err != nil {
		return nil, err
	}
	if err := warnOfOthers(options.Logger); err != nil {
		return nil, err
	}
	usable, err := trial(ctx, options.Layout, options.Logger)
	if err != nil {
		return nil, err
	}
	k, err := newNetlinkKernel(usable)
	if err != nil {
		return nil, err
	}
	if options.Layout == CTMark {
		options.Logger.Warn("layout ctmark overwrites the conntrack mark of every Service connection; " +
			"whoever else keeps bits there (AWS VPC CNI, Tailscale, Calico and others) loses them")
	}
	s := newSyncer(options, k)
	s.own, s.families = k.own, usable
	s.sweeper.kernel = &netlinkKernel{own: k.own, aside: true}
	return s, nil
}

func newSyncer(options Options, k kernel) *Syncer {
	options = options.withDefaults()
	return &Syncer{
		options: options, log: options.Logger, kernel: k, families: families(),
		rejected: make(map[frontendID]*rejected), sweeper: newSweeper(options, k),
	}
}

// Close releases the connection to the kernel. The tables stay.
func (s *Syncer) Close() error { return errors.Join(s.sweeper.kernel.close(), s.kernel.close()) }

// Sync is part of dataplane.Syncer.
func (s *Syncer) Sync(ctx context.Context, update dataplane.Update) (dataplane.Report, error) {
	s.begin()
	if s.tables == nil {
		return s.report, fmt.Errorf("sync: Reset has not been called")
	}
	if err := s.sync(ctx, &update); err != nil {
		s.tables = nil
		return s.report, fmt.Errorf("sync: %w", err)
	}
	s.finish()
	return s.report, nil
}

func (s *Syncer) begin() {
	s.report = dataplane.Report{}
	s.refused = make(map[*transition]struct{})
}

func (s *Syncer) sync(ctx context.Context, update *dataplane.Update) error {
	now := s.options.Now()
	if update.Settings != nil {
		if err := s.changeSettings(ctx, *update.Settings); err != nil {
			return err
		}
	}
	s.noteUnserved(update)
	due, calledOff := s.retries(update, now)
	for _, t := range s.tables {
		f := t.family.id
		t.assignIDs(update)
		list := pointers(t.transitions(update, calledOff[f]...))
		list = append(list, due[f]...)
		if err := s.addVariants(ctx, t, t.missing(list)); err != nil {
			return err
		}
		if err := s.program(ctx, t, list); err != nil {
			return err
		}
		s.sweeper.note(t, update)
		if err := s.cleanUp(ctx, t, now); err != nil {
			return err
		}
		s.settle(f, due[f])
	}
	return nil
}

// assignIDs gives affinity ids to the ServicePorts of the update that need them.
func (t *table) assignIDs(update *dataplane.Update) {
	for _, key := range update.Removed {
		if key.Family == t.family.id {
			t.ids.release(key)
		}
	}
	for i := range update.Changed {
		if sp := &update.Changed[i]; sp.Key.Family == t.family.id {
			t.ids.assign(sp)
		}
	}
}

func pointers(list []transition) []*transition {
	p := make([]*transition, len(list))
	for i := range list {
		p[i] = &list[i]
	}
	return p
}

// settle forgets the rejections whose retry the kernel has taken.
func (s *Syncer) settle(f dataplane.Family, retried []*transition) {
	for _, tr := range retried {
		if !s.isRejected(tr) {
			delete(s.rejected, frontendID{f, tr.vip})
		}
	}
}

// program takes the transitions to the kernel in bounded transactions. All that
// concerns one VIP is in one transaction, so that it is served by its old
// endpoints or by its new ones. Only rows that are too many for that come first.
func (s *Syncer) program(ctx context.Context, t *table, list []*transition) error {
	// A row may be replaced, which is two operations; so may a verdict in each of
	// the maps, and a range.
	const perRow, others = 2, 2 * 8
	var large []*transition
	for _, tr := range list {
		if tr.to == nil {
			continue
		}
		rows := len(tr.to.Endpoints) + len(tr.to.LocalEndpoints)
		if want := specOf(tr.vip, tr.to, 0); perRow*max(rows, int(want.buckets[clusterScope]))+others > s.options.BatchElements {
			large = append(large, tr)
		}
	}
	if err := s.run(ctx, t, large, t.planRows); err != nil {
		return err
	}
	publish := s.publisher(t)
	return s.run(ctx, t, list, func(p *plan, tr *transition, limit int) bool {
		t.planRows(p, tr, dataplane.MaxBuckets)
		return publish(p, tr, limit)
	})
}

// publisher returns the planner of all but the rows.
func (s *Syncer) publisher(t *table) planner {
	return func(p *plan, tr *transition, _ int) bool {
		t.planPublish(p, tr)
		if s.options.SurplusDelay < 0 {
			t.planTrim(p, tr.vip, dataplane.MaxBuckets)
		}
		return true
	}
}

// addVariants adds chains.
func (s *Syncer) addVariants(ctx context.Context, t *table, list []variant) error {
	if len(list) == 0 {
		return nil
	}
	chains := make([]chainDecl, len(list))
	for i, v := range list {
		chains[i] = v.chain(t.family, t.layout)
	}
	if err := s.writeChains(ctx, t.family, chains); err != nil {
		return fmt.Errorf("add chains: %w", err)
	}
	for _, v := range list {
		t.addVariant(v)
	}
	return nil
}

// writeChains gives chains their rules in one transaction, and in one more where
// there are rules that the nft program may not be able to read.
func (s *Syncer) writeChains(ctx context.Context, f family, chains []chainDecl) error {
	err := s.structure(ctx, f, func(tx *knftables.Transaction) {
		for _, chain := range chains {
			if !chain.byNetlink(f) {
				writeChain(tx, chain)
			} else {
				tx.Add(chain.object())
			}
		}
	})
	if err != nil {
		return err
	}
	pins := slices.DeleteFunc(slices.Clone(chains), func(c chainDecl) bool { return !c.byNetlink(f) })
	if len(pins) == 0 {
		return nil
	}
	start := time.Now()
	err = s.kernel.pinRules(ctx, f, pins)
	s.noteCommit(time.Since(start))
	return err
}

// byNetlink says that nft 1.0.6 and others cannot read the rules of the chain: they
// end with an assertion at the map statement if its key and value need more than
// one of the kernel's large registers.
func (c *chainDecl) byNetlink(f family) bool { return len(c.pins) > 0 && f.id == dataplane.IPv6 }

// structure runs one transaction of the nft program and keeps count.
func (s *Syncer) structure(ctx context.Context, f family, build func(*knftables.Transaction)) error {
	start := time.Now()
	err := s.kernel.structure(ctx, f, build)
	s.noteCommit(time.Since(start))
	return err
}

// changeSettings rewrites the chains whose rules depend on what has changed. The
// addresses that the new ones look for are there before, those that the old ones
// looked for until after.
func (s *Syncer) changeSettings(ctx context.Context, settings dataplane.Settings) error {
	for _, t := range s.tables {
		wanted := s.options.ruleset(t.family, &settings)
		var changed []chainDecl
		for i, chain := range wanted.chains {
			if !slices.Equal(chain.rules, t.structure.chains[i].rules) {
				changed = append(changed, chain)
			}
		}
		gone, err := s.addNodePortIPs(ctx, t, settings.NodePortAddresses)
		if err != nil {
			return fmt.Errorf("change settings: %w", err)
		}
		if len(changed) > 0 {
			if err := s.writeChains(ctx, t.family, changed); err != nil {
				return fmt.Errorf("change settings: %w", err)
			}
		}
		t.structure = wanted
		if err := s.dropNodePortIPs(ctx, t, gone); err != nil {
			return fmt.Errorf("change settings: %w", err)
		}
	}
	return nil
}

// addNodePortIPs adds the node's addresses of the family, and returns those that are
// there and not wanted.
func (s *Syncer) addNodePortIPs(ctx context.Context, t *table, want []netip.Addr) (gone []netip.Addr, err error) {
	var p plan
	for _, addr := range want {
		if dataplane.FamilyOf(addr) == t.family.id && t.nodePortIPs[addr] == 0 {
			count(&p, t.nodePortIPs, addr, true, nodePortIPElement)
		}
	}
	for addr := range t.nodePortIPs {
		if !slices.Contains(want, addr) {
			gone = append(gone, addr)
		}
	}
	return gone, s.applyOps(ctx, t, p.ops)
}

func (s *Syncer) dropNodePortIPs(ctx context.Context, t *table, gone []netip.Addr) error {
	var p plan
	for _, addr := range gone {
		count(&p, t.nodePortIPs, addr, false, nodePortIPElement)
	}
	return s.applyOps(ctx, t, p.ops)
}

// applyOps runs operations that are about no ServicePort.
func (s *Syncer) applyOps(ctx context.Context, t *table, ops []op) error {
	for chunk := range slices.Chunk(ops, s.options.BatchElements) {
		tx := &transaction{ops: chunk}
		if s.transact(ctx, t, tx); tx.err != nil {
			return describe(t.family, chunk, tx.err)
		}
		s.account(t, tx)
	}
	return nil
}

// cleanUp removes the rows and chains that have been out of use for long enough.
func (s *Syncer) cleanUp(ctx context.Context, t *table, now time.Time) error {
	var list []*transition
	for _, vip := range t.dueTrims(now) {
		list = append(list, &transition{vip: vip})
	}
	err := s.run(ctx, t, list, func(p *plan, tr *transition, limit int) bool {
		return t.planTrim(p, tr.vip, limit)
	})
	if err != nil {
		return fmt.Errorf("remove surplus rows: %w", err)
	}
	t.chains.noteIdle(now)
	idle := t.chains.idle(now.Add(-s.options.ChainDelay))
	if len(idle) == 0 {
		return nil
	}
	names := make([]string, len(idle))
	for i, v := range idle {
		names[i] = v.name()
	}
	err = s.structure(ctx, t.family, func(tx *knftables.Transaction) { deleteChains(tx, names) })
	if err != nil {
		return fmt.Errorf("remove unused chains: %w", err)
	}
	for _, v := range idle {
		t.dropVariant(v)
	}
	return nil
}

// errLeftOut is what a ServicePort is rejected with whose IP family the kernel has
// no nf_tables for.
var errLeftOut = errors.New("this kernel has no nf_tables for the IP family")

// noteUnserved keeps count of the ServicePorts that no table is for.
func (s *Syncer) noteUnserved(update *dataplane.Update) {
	if len(s.families) == len(families()) {
		return
	}
	for _, key := range update.Removed {
		delete(s.unserved, key)
	}
	for i := range update.Changed {
		key := update.Changed[i].Key
		if !slices.ContainsFunc(s.families, func(f family) bool { return f.id == key.Family }) {
			s.unserved[key] = struct{}{}
		}
	}
}

// finish fills in the rest of the report.
func (s *Syncer) finish() {
	r := &s.report
	due := func(at time.Time) {
		if r.Due.IsZero() || at.Before(r.Due) {
			r.Due = at
		}
	}
	for _, t := range s.tables {
		r.Programmed.ServicePorts += len(t.vips)
		r.Programmed.Endpoints += t.endpoints
		r.Programmed.Elements += t.elements
		r.Programmed.Chains += len(t.structure.chains) + len(t.chains)
		r.Programmed.Maps += len(t.structure.sets)
		if len(t.trims) > 0 {
			due(t.trims[0].at)
		}
		for _, state := range t.chains {
			if !state.variant.kept() && state.users == 0 {
				due(state.idleSince.Add(s.options.ChainDelay))
			}
		}
	}
	for key := range s.unserved {
		r.Rejected = append(r.Rejected, dataplane.Rejection{Key: key, Err: errLeftOut})
	}
	for _, rejected := range s.rejected {
		r.Rejected = append(r.Rejected, dataplane.Rejection{Key: rejected.tr.to.Key, Err: rejected.err})
		due(rejected.at)
	}
	slices.SortFunc(r.Rejected, func(a, b dataplane.Rejection) int { return strings.Compare(a.Key.String(), b.Key.String()) })
}
