// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// table is what the kernel's table of one family holds, as far as it depends on
// ServicePorts. Planning changes it at once; undo takes back what the kernel
// then refused.
type table struct {
	family family
	layout Layout
	// structure are the chains and sets that do not depend on ServicePorts.
	structure ruleset
	frontends map[dataplane.VIP]*frontend
	vips      map[dataplane.ServicePortKey]dataplane.VIP
	// clusterIPs and hairpins count the VIPs that need the element.
	clusterIPs map[netip.Addr]int
	hairpins   map[hairpin]int
	dispatch   map[int]*dispatchState
	trims      []trim
	// elements and endpoints count what is in the kernel.
	elements, endpoints int
}

// unknownVerdict stands for a verdict that was found in the kernel and that this
// version never writes.
const unknownVerdict = -1

// frontend is what the kernel holds for one VIP.
type frontend struct {
	owner dataplane.ServicePortKey
	slots slots
	// published is the number of buckets that the verdict draws from. Rows
	// from there up are surplus. Zero: there is no verdict.
	published int
	// rejects says that the VIP stands in no-endpoint-services.
	rejects bool
	// claimed says that the address is counted in clusterIPs.
	claimed bool
	// local are the endpoints that are counted in hairpins.
	local []netip.AddrPort
	// trimAt is when the last lookup that can still need a surplus row is
	// over.
	trimAt time.Time
}

// trim is an appointment to remove the surplus rows of a VIP.
type trim struct {
	vip dataplane.VIP
	at  time.Time
}

// transition takes a VIP to a ServicePort, or out of use if to is nil.
type transition struct {
	vip dataplane.VIP
	to  *dataplane.ServicePort
}

// op adds or deletes one element.
type op struct {
	element
	delete bool
}

// plan collects the operations of one transition in one transaction, and how to
// take them back from the table.
type plan struct {
	ops  []op
	undo []func()
	// frontend is the one that the plan changes, once it does.
	frontend *frontend
	// surplus says that the VIP has rows which are no longer needed a while
	// after the transaction.
	surplus bool
}

func (p *plan) add(e element)    { p.ops = append(p.ops, op{element: e}) }
func (p *plan) delete(e element) { p.ops = append(p.ops, op{element: e, delete: true}) }

// onUndo has rollback call undo, before what was planned earlier is taken back.
func (p *plan) onUndo(undo func()) { p.undo = append(p.undo, undo) }

// rollback makes the table what it was before the plan.
func (p *plan) rollback() {
	takeBack(p.undo)
	*p = plan{}
}

// takeBack undoes steps, the last one first.
func takeBack(steps []func()) {
	for _, undo := range slices.Backward(steps) {
		undo()
	}
}

// newTable returns an empty table that size ServicePorts are expected in.
func newTable(structure ruleset, layout Layout, size int) *table {
	return &table{
		family: structure.family, layout: layout, structure: structure,
		frontends:  make(map[dataplane.VIP]*frontend, size),
		vips:       make(map[dataplane.ServicePortKey]dataplane.VIP, size),
		clusterIPs: make(map[netip.Addr]int, size),
		hairpins:   make(map[hairpin]int),
		dispatch:   make(map[int]*dispatchState),
	}
}

// transitions returns what has to become of each VIP that the update touches.
// A VIP that passes from one ServicePort to another is one transition, so that
// it is never without a verdict. Of VIPs that were rejected and are called off,
// the kernel may hold what they were before; nobody wants that any more.
func (t *table) transitions(update *dataplane.Update, calledOff ...dataplane.VIP) []transition {
	size := len(update.Changed) + len(update.Removed)
	order := make([]dataplane.VIP, 0, size)
	to := make(map[dataplane.VIP]*dataplane.ServicePort, size)
	touch := func(vip dataplane.VIP, sp *dataplane.ServicePort) {
		old, seen := to[vip]
		if !seen {
			order = append(order, vip)
		}
		if sp != nil || old == nil {
			to[vip] = sp
		}
	}
	leave := func(key dataplane.ServicePortKey, stays dataplane.VIP) {
		vip, ok := t.vips[key]
		if ok && vip != stays && t.frontends[vip].owner == key {
			touch(vip, nil)
		}
	}
	for _, vip := range calledOff {
		if dataplane.FamilyOf(vip.Addr) == t.family.id {
			touch(vip, nil)
		}
	}
	for _, key := range update.Removed {
		if key.Family == t.family.id {
			leave(key, dataplane.VIP{})
		}
	}
	for i := range update.Changed {
		if sp := &update.Changed[i]; sp.Key.Family == t.family.id {
			leave(sp.Key, sp.VIP())
			touch(sp.VIP(), sp)
		}
	}
	list := make([]transition, 0, len(order))
	for _, vip := range order {
		list = append(list, transition{vip: vip, to: to[vip]})
	}
	return list
}

// frontend returns the frontend of the VIP for a change by p, which it will be
// restored by.
func (t *table) frontend(p *plan, vip dataplane.VIP) *frontend {
	if p.frontend != nil {
		return p.frontend
	}
	f := t.frontends[vip]
	if f == nil {
		f = &frontend{}
		t.frontends[vip] = f
		p.onUndo(func() { delete(t.frontends, vip) })
	} else {
		before := *f
		p.onUndo(func() { *f = before })
	}
	p.frontend = f
	return f
}

// planRows adds to p the rows that the transition needs, in limit operations.
// It reports whether all are there then. Rows that are in use keep leading to an
// endpoint throughout.
func (t *table) planRows(p *plan, tr *transition, limit int) (done bool) {
	if tr.to == nil || len(tr.to.Endpoints) == 0 {
		return true
	}
	if len(tr.to.Endpoints) <= limit && len(t.slotsOf(tr.vip)) == 0 {
		t.planFirstRows(p, tr)
		return true
	}
	changes := t.slotsOf(tr.vip).plan(addrs(tr.to.Endpoints))
	n := fitting(changes, limit)
	done = n == len(changes)
	changes = changes[:n]
	if len(changes) > 0 {
		f := t.frontend(p, tr.vip)
		t.planSlots(p, f, tr.vip, changes)
	}
	return done
}

// fitting returns how many of the changes need at most limit operations; at least
// one, so that there is progress.
func fitting(changes []slotChange, limit int) int {
	ops := 0
	for i, c := range changes {
		if c.old.IsValid() {
			ops++
		}
		if c.new.IsValid() {
			ops++
		}
		if ops > limit && i > 0 {
			return i
		}
	}
	return len(changes)
}

// planFirstRows adds to p the rows of a VIP that has none: what a start does for
// every VIP.
func (t *table) planFirstRows(p *plan, tr *transition) {
	rows := addrs(tr.to.Endpoints)
	for i, endpoint := range rows {
		p.add(t.layout.row(tr.vip, uint32(i), endpoint))
	}
	t.frontend(p, tr.vip).slots = rows
}

func (t *table) slotsOf(vip dataplane.VIP) slots {
	if f := t.frontends[vip]; f != nil {
		return f.slots
	}
	return nil
}

func (t *table) planSlots(p *plan, f *frontend, vip dataplane.VIP, changes []slotChange) {
	p.ops = slices.Grow(p.ops, len(changes))
	for _, c := range changes {
		if c.old.IsValid() {
			p.delete(t.layout.row(vip, c.bucket, netip.AddrPort{}))
		}
		if c.new.IsValid() {
			p.add(t.layout.row(vip, c.bucket, c.new))
		}
	}
	f.slots = f.slots.apply(changes)
}

// planPublish adds to p everything but the rows: the verdict of the VIP, and the
// sets that other rules look into. The rows have to be there.
func (t *table) planPublish(p *plan, tr *transition) {
	f := t.frontend(p, tr.vip)
	want := frontend{}
	if tr.to != nil {
		want = frontend{
			owner: tr.to.Key, claimed: true,
			published: len(tr.to.Endpoints), rejects: len(tr.to.Endpoints) == 0,
			local: localAddrs(tr.to.Endpoints),
		}
	}
	before := f.published
	t.planVerdict(p, f, tr.vip, want.published)
	if f.rejects != want.rejects {
		p.ops = append(p.ops, op{rejectElement(tr.vip), f.rejects})
	}
	if f.claimed != want.claimed {
		t.planClaim(p, tr.vip.Addr, want.claimed)
	}
	t.planHairpins(p, tr.vip.Protocol, f.local, want.local)
	t.planOwner(p, tr.vip, f.owner, want.owner)
	if len(f.slots) > want.published || tr.to == nil {
		p.surplus = true
	}
	t.planEndpoints(p, want.published-max(before, 0))
	f.owner, f.claimed, f.local = want.owner, want.claimed, want.local
	f.published, f.rejects = want.published, want.rejects
}

func (t *table) planEndpoints(p *plan, more int) {
	if more != 0 {
		t.endpoints += more
		p.onUndo(func() { t.endpoints -= more })
	}
}

// trimAt makes an appointment to remove the surplus rows of a VIP.
func (t *table) trimAt(vip dataplane.VIP, at time.Time) {
	if f := t.frontends[vip]; f != nil {
		f.trimAt = at
		t.trims = append(t.trims, trim{vip: vip, at: at})
	}
}

func (t *table) planVerdict(p *plan, f *frontend, vip dataplane.VIP, n int) {
	if f.published == n {
		return
	}
	if f.published != 0 {
		p.delete(serviceElement(vip, n))
	}
	if n > 0 {
		p.add(serviceElement(vip, n))
	}
	t.planUse(p, f.published, n)
}

func (t *table) planClaim(p *plan, addr netip.Addr, claim bool) {
	count(p, t.clusterIPs, addr, claim, clusterIPElement)
}

func (t *table) planHairpins(p *plan, protocol dataplane.Protocol, old, want []netip.AddrPort) {
	if slices.Equal(old, want) {
		return
	}
	for _, change := range []struct {
		from, to []netip.AddrPort
		add      bool
	}{{want, old, false}, {old, want, true}} {
		have := make(map[netip.AddrPort]struct{}, len(change.from))
		for _, ep := range change.from {
			have[ep] = struct{}{}
		}
		for _, ep := range change.to {
			if _, ok := have[ep]; !ok {
				count(p, t.hairpins, hairpin{ep, protocol}, change.add, hairpin.element)
			}
		}
	}
}

// count adds or takes one user of an element that several VIPs can need.
func count[K comparable](p *plan, users map[K]int, key K, add bool, toElement func(K) element) {
	before := users[key]
	after := before - 1
	if add {
		after = before + 1
	}
	setCount(users, key, after)
	p.onUndo(func() { setCount(users, key, before) })
	if before == 0 || after == 0 {
		p.ops = append(p.ops, op{toElement(key), !add})
	}
}

func setCount[K comparable](users map[K]int, key K, n int) {
	if n == 0 {
		delete(users, key)
	} else {
		users[key] = n
	}
}

// planOwner passes the VIP from one ServicePort to another. The zero key stands
// for none. While a handover is refused, the VIP's old owner may have another one
// already, and may come back from there.
func (t *table) planOwner(p *plan, vip dataplane.VIP, old, want dataplane.ServicePortKey) {
	none := dataplane.ServicePortKey{}
	if old != want && t.vips[old] == vip {
		delete(t.vips, old)
		p.onUndo(func() { t.vips[old] = vip })
	}
	saved, known := t.vips[want]
	switch {
	case want == none || saved == vip:
		return
	case known:
		p.onUndo(func() { t.vips[want] = saved })
	default:
		p.onUndo(func() { delete(t.vips, want) })
	}
	t.vips[want] = vip
}

// planTrim adds to p the removal of at most limit surplus rows of the VIP, and
// reports whether none is left. A VIP without rows is forgotten.
func (t *table) planTrim(p *plan, vip dataplane.VIP, limit int) (done bool) {
	f := t.frontend(p, vip)
	changes := f.slots.surplus(max(f.published, 0))
	done = len(changes) <= limit
	if !done {
		changes = changes[len(changes)-limit:]
	}
	t.planSlots(p, f, vip, changes)
	f.slots = f.slots[:len(f.slots)-trailingHoles(f.slots)]
	if len(f.slots) == 0 && f.unused() {
		delete(t.frontends, vip)
		p.onUndo(func() { t.frontends[vip] = f })
	}
	return done
}

// unused says that the kernel holds nothing for the VIP but rows. What was found
// there has no owner yet.
func (f *frontend) unused() bool {
	return f.owner == (dataplane.ServicePortKey{}) && f.published == 0 && !f.rejects && !f.claimed
}

func trailingHoles(s slots) int {
	n := 0
	for n < len(s) && !s[len(s)-1-n].IsValid() {
		n++
	}
	return n
}

// dueTrims takes the VIPs whose surplus rows no lookup can need any more.
func (t *table) dueTrims(now time.Time) []dataplane.VIP {
	var due []dataplane.VIP
	for len(t.trims) > 0 && !t.trims[0].at.After(now) {
		vip := t.trims[0].vip
		t.trims = t.trims[1:]
		if f := t.frontends[vip]; f != nil && !f.trimAt.After(now) {
			due = append(due, vip)
		}
	}
	return due
}

func addrs(endpoints []dataplane.Endpoint) []netip.AddrPort {
	list := make([]netip.AddrPort, len(endpoints))
	for i, ep := range endpoints {
		list[i] = ep.Addr
	}
	return list
}

func localAddrs(endpoints []dataplane.Endpoint) []netip.AddrPort {
	var list []netip.AddrPort
	for _, ep := range endpoints {
		if ep.Local {
			list = append(list, ep.Addr)
		}
	}
	return list
}
