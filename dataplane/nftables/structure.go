// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"slices"
	"strconv"

	"sigs.k8s.io/knftables"
)

// writeTable adds the table and its sets. What is there already stays.
func writeTable(tx *knftables.Transaction, r *ruleset) {
	tx.Add(&knftables.Table{})
	for _, set := range r.sets {
		writeSet(tx, set)
	}
}

func writeSet(tx *knftables.Transaction, set setDecl) {
	if set.kind == plainSet {
		tx.Add(&knftables.Set{Name: set.name, Type: set.typ, TypeOf: set.typeOf, Flags: set.flags(), Size: set.sizeOf()})
		return
	}
	tx.Add(&knftables.Map{Name: set.name, Type: set.typ, TypeOf: set.typeOf, Flags: set.flags(), Size: set.sizeOf()})
}

// writeChain adds the chain if it is not there, and gives it exactly its rules.
// Packets see the old rules or the new ones.
func writeChain(tx *knftables.Transaction, chain chainDecl) {
	tx.Add(chain.object())
	tx.Flush(&knftables.Chain{Name: chain.name})
	for _, rule := range chain.rules {
		tx.Add(&knftables.Rule{Chain: chain.name, Rule: rule})
	}
}

func (c *chainDecl) object() *knftables.Chain {
	chain := &knftables.Chain{Name: c.name}
	if c.base != nil {
		chain.Type = &c.base.typ
		chain.Hook = &c.base.hook
		chain.Priority = new(knftables.BaseChainPriority(strconv.Itoa(c.base.priority)))
	}
	return chain
}

// regular returns the chains that are not base chains.
func (r *ruleset) regular() []chainDecl {
	return slices.DeleteFunc(slices.Clone(r.chains), func(c chainDecl) bool { return c.base != nil })
}

// base returns the base chains.
func (r *ruleset) base() []chainDecl {
	return slices.DeleteFunc(slices.Clone(r.chains), func(c chainDecl) bool { return c.base == nil })
}

// deleteChains removes chains that may go to each other, rules and all.
func deleteChains(tx *knftables.Transaction, names []string) {
	for _, name := range names {
		tx.Flush(&knftables.Chain{Name: name})
	}
	for _, name := range names {
		tx.Delete(&knftables.Chain{Name: name})
	}
}
