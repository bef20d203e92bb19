// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"sigs.k8s.io/knftables"
)

// setKind says what a set maps its keys to.
type setKind uint8

const (
	plainSet setKind = iota
	dataMap
	verdictMap
)

// setDecl declares a set or map. Exactly one of typ and typeOf is set: a plain
// key or a verdict declared by type makes nft 1.0.6 crash when nft 1.1.7 wrote
// it.
type setDecl struct {
	name   string
	kind   setKind
	typ    string
	typeOf string
	// ranges says that the last field of a key may be a range.
	ranges bool
	// learns says that packets write the elements, which expire. There are at
	// most size of them.
	learns bool
	size   int
}

// flags returns the flags that make a set more than a hash table.
func (d *setDecl) flags() []knftables.SetFlag {
	switch {
	case d.ranges:
		return []knftables.SetFlag{knftables.IntervalFlag}
	case d.learns:
		return []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag}
	default:
		return nil
	}
}

// sizeOf returns the size as knftables takes it.
func (d *setDecl) sizeOf() *uint64 {
	if d.size == 0 {
		return nil
	}
	return new(uint64(d.size))
}

// chainDecl is a chain with its rules. Base chains have a type, hook and
// priority.
type chainDecl struct {
	name  string
	base  *baseChain
	rules []string
	// pins are the first of the rules, where these write pins: nft 1.0.6 cannot
	// read them for IPv6.
	pins []pinRule
}

// baseChain is where a chain hangs. Its policy is accept.
type baseChain struct {
	typ      knftables.BaseChainType
	hook     knftables.BaseChainHook
	priority int
}

// ruleset is the structure of one table, without variants and elements.
type ruleset struct {
	family family
	sets   []setDecl
	// chains stand in an order in which each is declared before a rule goes
	// to it.
	chains []chainDecl
}

func (r *ruleset) set(name string) *setDecl {
	for i := range r.sets {
		if r.sets[i].name == name {
			return &r.sets[i]
		}
	}
	return nil
}

func (r *ruleset) chain(name string) *chainDecl {
	for i := range r.chains {
		if r.chains[i].name == name {
			return &r.chains[i]
		}
	}
	return nil
}

// accepts says whether the kernel's set can serve as the set of that name.
func (r *ruleset) accepts(found setInfo) bool {
	set := r.set(found.name)
	return set == nil || (set.kind == found.kind && r.shape(set) == found.shape &&
		set.ranges == found.ranges && set.learns == found.learns && !found.special)
}

// acceptsChain says whether the kernel's chain hangs where the chain of that name
// should, and lets through what its rules say nothing about. Regular chains hang
// nowhere.
func (r *ruleset) acceptsChain(found chainInfo) bool {
	switch chain := r.chain(found.name); {
	case chain != nil && chain.base != nil:
		return found.base != nil && *chain.base == *found.base && !found.drops
	case chain != nil || isVariant(found.name):
		return found.base == nil
	default:
		return true
	}
}

// replaceable says whether a chain that is not accepted can be replaced alone:
// other rules lead to regular chains, but none to base chains.
func (r *ruleset) replaceable(found chainInfo) bool {
	chain := r.chain(found.name)
	return chain != nil && chain.base != nil
}

// shape returns the lengths of the set's keys and values in the kernel.
func (r *ruleset) shape(set *setDecl) setShape {
	shape := setShape{key: lengthOf(keyFields(set.name), r.family)}
	if set.kind == dataMap {
		shape.data = lengthOf(endpointFields(), r.family)
	}
	return shape
}
