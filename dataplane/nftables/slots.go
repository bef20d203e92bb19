// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import "net/netip"

// slots are the rows of one VIP as they stand in the endpoints map: bucket i
// leads to slots[i]. A zero AddrPort is a row that is not there.
type slots []netip.AddrPort

// slotChange is what happens to one row. The zero AddrPort stands for no row.
type slotChange struct {
	bucket   uint32
	old, new netip.AddrPort
}

// plan returns the changes that let buckets 0 to len(want)-1 lead to each of
// want exactly as often as it stands there. Endpoints keep their buckets where they
// can: removing one endpoint moves the last ones into its buckets, so the number of
// changes is that of the buckets that came and went, whatever the number of
// endpoints.
//
// Rows beyond len(want) are left as they are, since lookups may still be under
// way to them; see surplus.
func (s slots) plan(want []netip.AddrPort) []slotChange {
	if s.leadsTo(want) {
		return nil
	}
	missing := make(map[netip.AddrPort]int, len(want))
	for _, ep := range want {
		missing[ep]++
	}
	var free []uint32
	for i := range min(len(s), len(want)) {
		if missing[s[i]] > 0 {
			missing[s[i]]--
		} else {
			free = append(free, uint32(i))
		}
	}
	for i := len(s); i < len(want); i++ {
		free = append(free, uint32(i))
	}
	changes := make([]slotChange, 0, len(free))
	for _, ep := range want {
		if missing[ep] == 0 {
			continue
		}
		missing[ep]--
		change := slotChange{bucket: free[len(changes)], new: ep}
		if int(change.bucket) < len(s) {
			change.old = s[change.bucket]
		}
		changes = append(changes, change)
	}
	return changes
}

// leadsTo says whether the rows are already in the order of want, as after a
// restart or a change of something else.
func (s slots) leadsTo(want []netip.AddrPort) bool {
	if len(s) < len(want) {
		return false
	}
	for i, ep := range want {
		if s[i] != ep {
			return false
		}
	}
	return true
}

// apply returns the rows after the changes. The receiver stays as it is.
func (s slots) apply(changes []slotChange) slots {
	size := len(s)
	for _, c := range changes {
		size = max(size, int(c.bucket)+1)
	}
	next := make(slots, size)
	copy(next, s)
	for _, c := range changes {
		next[c.bucket] = c.new
	}
	return next
}

// surplus returns the changes that remove all rows from bucket n up.
func (s slots) surplus(n int) []slotChange {
	var changes []slotChange
	for i := n; i < len(s); i++ {
		if s[i].IsValid() {
			changes = append(changes, slotChange{bucket: uint32(i), old: s[i]})
		}
	}
	return changes
}

// with returns the rows with one more, which was found in the kernel.
func (s slots) with(bucket uint32, endpoint netip.AddrPort) slots {
	if missing := int(bucket) + 1 - len(s); missing > 0 {
		s = append(s, make(slots, missing)...)
	}
	s[bucket] = endpoint
	return s
}
