// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"maps"
	"slices"
	"time"
)

// keepChains is the largest number of endpoints whose dispatch chain stays when
// nothing uses it: such counts come back all the time.
const keepChains = 16

// dispatchState is a dispatch chain that the kernel has.
type dispatchState struct {
	users int
	// idleSince is when the last user left.
	idleSince time.Time
}

// planUse moves one VIP from the dispatch chain of old endpoints to that of n.
func (t *table) planUse(p *plan, old, n int) {
	if state := t.dispatch[old]; state != nil {
		state.users--
		p.onUndo(func() { state.users++ })
	}
	if state := t.dispatch[n]; state != nil {
		state.users++
		p.onUndo(func() { state.users-- })
	}
}

// missingDispatch returns the sizes of the dispatch chains that the transitions
// need and the kernel does not have, in order.
func (t *table) missingDispatch(list []*transition) []int {
	missing := make(map[int]struct{})
	for _, tr := range list {
		if tr.to == nil || len(tr.to.Endpoints) == 0 {
			continue
		}
		if n := len(tr.to.Endpoints); t.dispatch[n] == nil {
			missing[n] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(missing))
}

// noteIdle records when dispatch chains lost their last user.
func (t *table) noteIdle(now time.Time) {
	for _, state := range t.dispatch {
		switch {
		case state.users > 0:
			state.idleSince = time.Time{}
		case state.idleSince.IsZero():
			state.idleSince = now
		}
	}
}

// idleDispatch returns the sizes of the dispatch chains that have had no user
// since before, in order.
func (t *table) idleDispatch(before time.Time) []int {
	var idle []int
	for n, state := range t.dispatch {
		if n > keepChains && state.users == 0 && !state.idleSince.After(before) {
			idle = append(idle, n)
		}
	}
	slices.Sort(idle)
	return idle
}
