// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"
)

// addrRange are the addresses from from to to, both included.
type addrRange struct{ from, to netip.Addr }

// mergeRanges returns the ranges of the prefixes that are of one family, sorted,
// none touching another: the kernel refuses a range within one that is there.
func mergeRanges(prefixes []netip.Prefix) []addrRange {
	ranges := make([]addrRange, 0, len(prefixes))
	for _, p := range prefixes {
		ranges = append(ranges, addrRange{p.Masked().Addr(), lastAddr(p)})
	}
	slices.SortFunc(ranges, func(a, b addrRange) int { return a.from.Compare(b.from) })
	merged := ranges[:0]
	for _, r := range ranges {
		last := len(merged) - 1
		switch {
		case last < 0 || touches(merged[last].to).Less(r.from):
			merged = append(merged, r)
		case merged[last].to.Less(r.to):
			merged[last].to = r.to
		}
	}
	return merged
}

// touches returns the address behind addr, or addr if it is the last one.
func touches(addr netip.Addr) netip.Addr {
	if next := addr.Next(); next.IsValid() {
		return next
	}
	return addr
}

// lastAddr returns the last address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(bytes); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}
