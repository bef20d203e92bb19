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
	// vips are those that each ServicePort has. The lists are never changed.
	vips map[dataplane.ServicePortKey][]dataplane.VIP
	// clusterIPs, hairpins and nodePortIPs count the users of the element.
	clusterIPs  map[netip.Addr]int
	hairpins    map[hairpin]int
	nodePortIPs map[netip.Addr]int
	chains      variants
	ids         affinityIDs
	trims       []trim
	// elements and endpoints count what is in the kernel.
	elements, endpoints int
}

// frontend is what the kernel holds for one VIP.
type frontend struct {
	owner dataplane.ServicePortKey
	spec  spec
	// found are elements that were there before this process, until the first
	// transition. They stand for spec.
	found []element
	// slots are the rows of each scope. Those beyond the buckets of spec are
	// surplus.
	slots [scopes]slots
	// claimed says that the address is counted in clusterIPs.
	claimed bool
	// local are the endpoints that are counted in hairpins.
	local []netip.AddrPort
	// trimAt is when the last lookup that can still need a surplus row is
	// over.
	trimAt time.Time
}

// elements returns what is in the kernel but rows.
func (f *frontend) elements(vip dataplane.VIP) []element {
	if f.found != nil {
		return f.found
	}
	return f.spec.elements(vip)
}

// drawn returns the number of buckets of the scope that verdicts draw from.
func (f *frontend) drawn(in scope) int {
	if f.found == nil {
		return int(f.spec.buckets[in])
	}
	n := uint32(0)
	for _, e := range f.found {
		if v, ok := parseVariant(chainOf(e.verdict)); ok && v.kind == dispatchVariant && v.scope == in {
			n = max(n, v.n)
		}
	}
	return int(n)
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
		frontends:   make(map[dataplane.VIP]*frontend, size),
		vips:        make(map[dataplane.ServicePortKey][]dataplane.VIP, size),
		clusterIPs:  make(map[netip.Addr]int, size),
		hairpins:    make(map[hairpin]int),
		nodePortIPs: make(map[netip.Addr]int),
		chains:      make(variants),
		ids:         newAffinityIDs(),
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
	leave := func(key dataplane.ServicePortKey, stays []dataplane.VIP) {
		for _, vip := range t.vips[key] {
			if !slices.Contains(stays, vip) && t.frontends[vip].owner == key {
				touch(vip, nil)
			}
		}
	}
	for _, vip := range calledOff {
		touch(vip, nil)
	}
	for _, key := range update.Removed {
		if key.Family == t.family.id {
			leave(key, nil)
		}
	}
	for i := range update.Changed {
		if sp := &update.Changed[i]; sp.Key.Family == t.family.id {
			vips := sp.VIPs()
			leave(sp.Key, vips)
			for _, vip := range vips {
				touch(vip, sp)
			}
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
	if tr.to == nil {
		return true
	}
	want := specOf(tr.vip, tr.to, 0)
	for in := range scopes {
		if want.buckets[in] > 0 && !t.planScope(p, tr, in, limit-len(p.ops)) {
			return false
		}
	}
	return true
}

// planScope is planRows for one scope.
func (t *table) planScope(p *plan, tr *transition, in scope, limit int) (done bool) {
	rows := rowsOf(endpointsIn(tr.to, in))
	if len(rows) <= limit && len(t.slotsOf(tr.vip, in)) == 0 {
		// What a start does for every VIP.
		for i, endpoint := range rows {
			p.add(t.layout.row(tr.vip, in, uint32(i), endpoint))
		}
		t.frontend(p, tr.vip).slots[in] = rows
		return true
	}
	changes := t.slotsOf(tr.vip, in).plan(rows)
	n := fitting(changes, limit)
	t.planSlots(p, tr.vip, in, changes[:n])
	return n == len(changes)
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

func (t *table) slotsOf(vip dataplane.VIP, in scope) slots {
	if f := t.frontends[vip]; f != nil {
		return f.slots[in]
	}
	return nil
}

func (t *table) planSlots(p *plan, vip dataplane.VIP, in scope, changes []slotChange) {
	if len(changes) == 0 {
		return
	}
	f := t.frontend(p, vip)
	p.ops = slices.Grow(p.ops, len(changes))
	for _, c := range changes {
		if c.old.IsValid() {
			p.delete(t.layout.row(vip, in, c.bucket, netip.AddrPort{}))
		}
		if c.new.IsValid() {
			p.add(t.layout.row(vip, in, c.bucket, c.new))
		}
	}
	f.slots[in] = f.slots[in].apply(changes)
}

// planPublish adds to p everything but the rows: the verdicts of the VIP, and the
// sets that other rules look into. The rows have to be there.
func (t *table) planPublish(p *plan, tr *transition) {
	f := t.frontend(p, tr.vip)
	want := frontend{}
	if tr.to != nil {
		want.owner = tr.to.Key
		want.spec = specOf(tr.vip, tr.to, t.ids.of(tr.to))
		if !want.spec.external {
			want.claimed, want.local = true, hairpins(tr.to)
		}
	}
	t.planElements(p, f.elements(tr.vip), want.spec.elements(tr.vip))
	if f.claimed != want.claimed {
		count(p, t.clusterIPs, tr.vip.Addr, want.claimed, clusterIPElement)
	}
	t.planHairpins(p, tr.vip.Protocol, f.local, want.local)
	t.planOwner(p, tr.vip, f.owner, want.owner)
	t.planEndpoints(p, int(want.spec.endpoints)-int(f.spec.endpoints))
	f.owner, f.claimed, f.local = want.owner, want.claimed, want.local
	f.spec, f.found = want.spec, nil
	p.surplus = tr.to == nil || f.surplus(clusterScope) || f.surplus(localScope)
}

// surplus says whether there are rows that no bucket is drawn for.
func (f *frontend) surplus(in scope) bool { return len(f.slots[in]) > f.drawn(in) }

// planElements takes the elements of a VIP from old to want. Both are few.
func (t *table) planElements(p *plan, old, want []element) {
	holds := func(list []element, e element) bool { return slices.Contains(list, e) }
	for _, e := range old {
		if !holds(want, e) {
			p.delete(e)
			t.chains.planUse(p, e.verdict, -1)
		}
	}
	for _, e := range want {
		if !holds(old, e) {
			p.add(e)
			t.chains.planUse(p, e.verdict, +1)
		}
	}
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
	if old != want && old != none {
		left := slices.DeleteFunc(slices.Clone(t.vips[old]), func(v dataplane.VIP) bool { return v == vip })
		t.planVIPs(p, old, left)
	}
	if want != none && !slices.Contains(t.vips[want], vip) {
		had := t.vips[want]
		t.planVIPs(p, want, append(slices.Clip(had), vip))
	}
}

func (t *table) planVIPs(p *plan, key dataplane.ServicePortKey, vips []dataplane.VIP) {
	before, known := t.vips[key]
	set := func(vips []dataplane.VIP, known bool) {
		if known {
			t.vips[key] = vips
		} else {
			delete(t.vips, key)
		}
	}
	set(vips, len(vips) > 0)
	p.onUndo(func() { set(before, known) })
}

// planTrim adds to p the removal of at most limit surplus rows of the VIP, and
// reports whether none is left. A VIP without rows is forgotten.
func (t *table) planTrim(p *plan, vip dataplane.VIP, limit int) (done bool) {
	f := t.frontend(p, vip)
	done = true
	for in := range scopes {
		changes := f.slots[in].surplus(f.drawn(in))
		if room := limit - len(p.ops); len(changes) > room {
			done = false
			changes = changes[len(changes)-max(room, 0):]
		}
		t.planSlots(p, vip, in, changes)
		f.slots[in] = f.slots[in][:len(f.slots[in])-trailingHoles(f.slots[in])]
	}
	if done && f.unused() {
		delete(t.frontends, vip)
		p.onUndo(func() { t.frontends[vip] = f })
	}
	return done
}

// unused says that the kernel holds nothing for the VIP. What was found there has
// no owner yet.
func (f *frontend) unused() bool {
	return f.owner == (dataplane.ServicePortKey{}) && f.spec.isZero() && f.found == nil && !f.claimed &&
		len(f.slots[clusterScope]) == 0 && len(f.slots[localScope]) == 0
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
