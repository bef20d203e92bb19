// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"sigs.k8s.io/knftables"

	"github.com/veridict/veridict/dataplane"
)

// Fake stands for the kernel in tests that run without privileges. It holds the
// tables of both families, runs transactions as a whole or not at all, and
// refuses what the kernel refuses with the kernel's error numbers: a key that is
// there with another value, a key, set or chain that is not there, a chain that
// is still in use. It is not safe for concurrent use. Its functions are called one
// at a time and never after the call of the Syncer has returned, but not always by
// the goroutine that made that call.
type Fake struct {
	// Refuse is asked before each transaction, if set; its error, which should
	// wrap a syscall.Errno, makes the transaction fail.
	Refuse func(Commit) error
	// Committed is called after each transaction that did not fail, if set.
	Committed func(Commit)

	tables  map[dataplane.Family]*fakeTable
	commits int
}

var _ kernel = (*Fake)(nil)

// Commit is one transaction as a [Fake] sees it.
type Commit struct {
	// Number counts the transactions that were tried, from 1.
	Number int
	Family dataplane.Family
	// Changes are empty for a transaction of tables, chains and rules.
	Changes []ElementChange
}

// ElementChange is one element that a transaction adds or deletes.
type ElementChange struct {
	Delete bool
	// Set is the name of the set or map.
	Set string
	// Element is "key" or "key : value" in nft's words. Deletions name the key.
	Element string
}

// fakeTable is one table: structure as knftables holds it, and elements as the
// kernel does, because knftables' fake takes time in proportion to the table for
// each of them.
type fakeTable struct {
	family    family
	structure *knftables.Fake
	sets      map[string]*fakeSet
}

// fakeSet are the elements of one set by key. The handle tells it from another
// set that had the same name.
type fakeSet struct {
	handle   int
	elements map[string]element
}

// NewFake returns a kernel without tables.
func NewFake() *Fake {
	fake := &Fake{tables: make(map[dataplane.Family]*fakeTable)}
	for _, f := range families() {
		fake.tables[f.id] = &fakeTable{
			family:    f,
			structure: knftables.NewFake(knftables.Family(f.ip), tableName),
			sets:      make(map[string]*fakeSet),
		}
	}
	return fake
}

// NewSyncer returns a Syncer that programs the fake. Another one on the same fake
// is what a restarted process is to the kernel.
func (k *Fake) NewSyncer(options Options) *Syncer { return newSyncer(options, k) }

// Table returns a copy of the family's table with elements in nft's words, or nil
// if there is none. Elements stand in the order of their keys.
func (k *Fake) Table(id dataplane.Family) *knftables.FakeTable {
	t := k.tables[id]
	found := t.structure.Table
	if found == nil {
		return nil
	}
	table := &knftables.FakeTable{
		Table: found.Table, Chains: maps.Clone(found.Chains),
		Sets: make(map[string]*knftables.FakeSet), Maps: make(map[string]*knftables.FakeMap),
	}
	table.Family, table.Name = knftables.Family(t.family.ip), tableName
	for name, set := range found.Sets {
		table.Sets[name] = &knftables.FakeSet{Set: set.Set, Elements: t.text(name, false)}
	}
	for name, m := range found.Maps {
		table.Maps[name] = &knftables.FakeMap{Map: m.Map, Elements: t.text(name, true)}
	}
	return table
}

// text returns the elements of a set in nft's words.
func (t *fakeTable) text(name string, isMap bool) []*knftables.Element {
	set := t.sets[name]
	var list []*knftables.Element
	for _, key := range slices.Sorted(maps.Keys(set.elements)) {
		list = append(list, fakeElement(t.family, set.elements[key], isMap))
	}
	return list
}

func fakeElement(f family, e element, isMap bool) *knftables.Element {
	key, value, _ := strings.Cut(e.text(f), " : ")
	words := strings.Split(key, " . ")
	if isMap {
		return &knftables.Element{Map: e.set, Key: words, Value: strings.Split(value, " . ")}
	}
	return &knftables.Element{Set: e.set, Key: words}
}

// FlushRuleset removes all tables, as "nft flush ruleset" does.
func (k *Fake) FlushRuleset() {
	fresh := NewFake()
	k.tables = fresh.tables
}

// objects is part of kernel.
func (k *Fake) objects(ctx context.Context, f family) (objects, error) {
	var list objects
	table := k.tables[f.id].structure.Table
	if table == nil {
		return list, ctx.Err()
	}
	for _, name := range slices.Sorted(maps.Keys(table.Chains)) {
		list.chains = append(list.chains, fakeChain(table.Chains[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(table.Sets)) {
		set := table.Sets[name]
		list.sets = append(list.sets, describeSet(name, plainSet, cmp.Or(set.TypeOf, set.Type), set.Flags))
	}
	for _, name := range slices.Sorted(maps.Keys(table.Maps)) {
		m := table.Maps[name]
		list.sets = append(list.sets, describeSet(name, dataMap, cmp.Or(m.TypeOf, m.Type), m.Flags))
	}
	return list, ctx.Err()
}

func fakeChain(c *knftables.FakeChain) chainInfo {
	info := chainInfo{name: c.Name}
	if c.Type != nil {
		info.base = &baseChain{typ: *c.Type, hook: *c.Hook}
		_, _ = fmt.Sscan(string(*c.Priority), &info.base.priority)
	}
	return info
}

// describeSet reads lengths off a declaration: each field takes four bytes, but
// an IPv6 address takes sixteen.
func describeSet(name string, kind setKind, declaration string, flags []knftables.SetFlag) setInfo {
	length := func(fields string) uint32 {
		var sum uint32
		for field := range strings.SplitSeq(fields, " . ") {
			switch field {
			case "ip6 saddr", "ip6 daddr", "ipv6_addr":
				sum += 16
			default:
				sum += 4
			}
		}
		return sum
	}
	key, value, _ := strings.Cut(declaration, " : ")
	info := setInfo{
		name: name, kind: kind, shape: setShape{key: length(key)},
		ranges: slices.Contains(flags, knftables.IntervalFlag), learns: slices.Contains(flags, knftables.DynamicFlag),
	}
	switch {
	case value == "verdict":
		info.kind = verdictMap
	case value != "":
		info.shape.data = length(value)
	}
	return info
}

// elements is part of kernel.
func (k *Fake) elements(ctx context.Context, f family, set string, yield func(element)) error {
	found := k.tables[f.id].sets[set]
	if found == nil {
		return fmt.Errorf("list elements of %s: %w", set, syscall.ENOENT)
	}
	for _, e := range found.elements {
		yield(e)
	}
	return ctx.Err()
}

// begin asks Refuse about a transaction.
func (k *Fake) begin(ctx context.Context, f family, ops []op) (Commit, error) {
	k.commits++
	commit := Commit{Number: k.commits, Family: f.id}
	if k.Refuse != nil || k.Committed != nil {
		for _, o := range ops {
			if o.delete {
				o.data, o.verdict = "", ""
			}
			commit.Changes = append(commit.Changes, ElementChange{Delete: o.delete, Set: o.set, Element: o.text(f)})
		}
	}
	if err := ctx.Err(); err != nil {
		return commit, err
	}
	if k.Refuse != nil {
		return commit, k.Refuse(commit)
	}
	return commit, nil
}

func (k *Fake) committed(commit Commit) {
	if k.Committed != nil {
		k.Committed(commit)
	}
}

// structure is part of kernel.
func (k *Fake) structure(ctx context.Context, f family, build func(*knftables.Transaction)) error {
	t := k.tables[f.id]
	tx := t.structure.NewTransaction()
	build(tx)
	if tx.NumOperations() == 0 {
		return nil
	}
	commit, err := k.begin(ctx, f, nil)
	if err != nil {
		return err
	}
	tables, table, sets := t.structure.Tables, t.structure.Table, t.sets
	if err := t.structure.Run(ctx, tx); err != nil {
		if knftables.IsNotFound(err) {
			return fmt.Errorf("%w: %w", err, syscall.ENOENT)
		}
		return err
	}
	t.sets = t.keepElements()
	if err := t.checkReferences(); err != nil {
		t.structure.Tables, t.structure.Table, t.sets = tables, table, sets
		return err
	}
	k.committed(commit)
	return nil
}

// keepElements returns the elements of the sets that are still the same.
func (t *fakeTable) keepElements() map[string]*fakeSet {
	sets := make(map[string]*fakeSet)
	keep := func(name string, handle int) {
		sets[name] = &fakeSet{handle: handle, elements: make(map[string]element)}
		if old := t.sets[name]; old != nil && old.handle == handle {
			sets[name] = old
		}
	}
	if table := t.structure.Table; table != nil {
		for name, set := range table.Sets {
			keep(name, *set.Handle)
		}
		for name, m := range table.Maps {
			keep(name, *m.Handle)
		}
	}
	return sets
}

// checkReferences refuses tables in which something leads to a chain, or looks
// into a set, that is gone.
func (t *fakeTable) checkReferences() error {
	table := t.structure.Table
	if table == nil {
		return nil
	}
	for _, chain := range table.Chains {
		for _, rule := range chain.Rules {
			if target := t.danglingWord(rule.Rule); target != "" {
				return fmt.Errorf("%s is used by chain %s: %w", target, chain.Name, syscall.EBUSY)
			}
		}
	}
	for name, set := range t.sets {
		for _, e := range set.elements {
			if !t.leadsSomewhere(e.verdict) {
				return fmt.Errorf("element of %s: %s: %w", name, e.verdict, syscall.EBUSY)
			}
		}
	}
	return nil
}

// danglingWord returns the first chain or set of a rule that is not there.
func (t *fakeTable) danglingWord(rule string) string {
	words := strings.Fields(rule)
	for i, word := range words {
		if set, ok := strings.CutPrefix(word, "@"); ok && t.sets[set] == nil {
			return set
		}
		if i > 0 && (words[i-1] == "goto" || words[i-1] == "jump") && t.structure.Table.Chains[word] == nil {
			return word
		}
	}
	return ""
}

func (t *fakeTable) leadsSomewhere(verdict string) bool {
	chain := chainOf(verdict)
	return chain == "" || t.structure.Table.Chains[chain] != nil
}

// apply is part of kernel. Deletions go first.
func (k *Fake) apply(ctx context.Context, f family, ops []op) error {
	commit, err := k.begin(ctx, f, ops)
	if err != nil {
		return err
	}
	t := k.tables[f.id]
	var done []op
	for _, del := range []bool{true, false} {
		for _, o := range ops {
			if o.delete != del {
				continue
			}
			undo, err := t.change(o)
			if err != nil {
				for _, o := range slices.Backward(done) {
					t.put(o)
				}
				return fmt.Errorf("%s { %s }: %w", o.set, o.text(f), err)
			}
			done = append(done, undo)
		}
	}
	k.committed(commit)
	return nil
}

// change adds or deletes one element and returns what takes that back.
func (t *fakeTable) change(o op) (undo op, err error) {
	set := t.sets[o.set]
	if set == nil {
		return op{}, syscall.ENOENT
	}
	old, found := set.elements[o.key]
	undo = op{element: old}
	if !found {
		undo = op{element: o.element, delete: true}
	}
	switch {
	case o.delete && !found:
		return op{}, syscall.ENOENT
	case !o.delete && found && old != o.element:
		return op{}, syscall.EEXIST
	case !o.delete && !t.leadsSomewhere(o.verdict):
		return op{}, syscall.ENOENT
	}
	t.put(o)
	return undo, nil
}

func (t *fakeTable) put(o op) {
	if o.delete {
		delete(t.sets[o.set].elements, o.key)
	} else {
		t.sets[o.set].elements[o.key] = o.element
	}
}

// close is part of kernel.
func (k *Fake) close() error { return nil }

// pinRules is part of kernel.
func (k *Fake) pinRules(ctx context.Context, f family, chains []chainDecl) error {
	return k.structure(ctx, f, func(tx *knftables.Transaction) {
		for _, chain := range chains {
			writeChain(tx, chain)
		}
	})
}

// open is part of kernel.
func (k *Fake) open(ctx context.Context) error { return ctx.Err() }
