// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestMergeRanges(t *testing.T) {
	cases := []struct{ prefixes, want string }{
		{"", ""},
		{"203.0.113.7/32", "203.0.113.7-203.0.113.7"},
		{"203.0.113.0/24", "203.0.113.0-203.0.113.255"},
		{"10.0.0.0/8 10.1.0.0/16", "10.0.0.0-10.255.255.255"},
		{"10.1.0.0/16 10.0.0.0/8", "10.0.0.0-10.255.255.255"},
		{"10.0.1.0/24 10.0.0.0/24", "10.0.0.0-10.0.1.255"},
		{"10.0.0.0/24 10.0.2.0/24", "10.0.0.0-10.0.0.255 10.0.2.0-10.0.2.255"},
		{"255.255.255.255/32 255.255.255.254/32", "255.255.255.254-255.255.255.255"},
		{"10.0.0.9/24", "10.0.0.0-10.0.0.255"},
		{"fd00::/64 fd00::/126", "fd00::-fd00::ffff:ffff:ffff:ffff"},
		{"ffff::/16 ffff:ffff::/32", "ffff::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
	}
	for _, tc := range cases {
		var prefixes []netip.Prefix
		for text := range strings.FieldsSeq(tc.prefixes) {
			prefixes = append(prefixes, netip.MustParsePrefix(text))
		}
		var words []string
		for _, r := range mergeRanges(prefixes) {
			words = append(words, r.from.String()+"-"+r.to.String())
		}
		if got := strings.Join(words, " "); got != tc.want {
			t.Errorf("%s merged to %q, want %q", tc.prefixes, got, tc.want)
		}
	}
}

// An address is in one of the ranges exactly if it is in one of the prefixes, and
// ranges do not touch.
func TestMergedRangesHoldTheSameAddresses(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var prefixes []netip.Prefix
		for _, b := range rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(rt, "prefixes") {
			prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{255, 255, 255, b}), 24+int(b%9)))
		}
		merged := mergeRanges(prefixes)
		for host := range 256 {
			addr := netip.AddrFrom4([4]byte{255, 255, 255, byte(host)})
			want := slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
			got := slices.ContainsFunc(merged, func(r addrRange) bool { return r.from.Compare(addr) <= 0 && addr.Compare(r.to) <= 0 })
			if got != want {
				rt.Fatalf("%s: %t, want %t, merged %v", addr, got, want, merged)
			}
		}
		for i := 1; i < len(merged); i++ {
			if !merged[i-1].to.Next().Less(merged[i].from) {
				rt.Fatalf("ranges touch: %v", merged)
			}
		}
	})
}
