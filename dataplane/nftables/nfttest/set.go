// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nfttest

import (
	"net/netip"
	"strings"

	"sigs.k8s.io/knftables"
)

// set are the elements of a set or map by key.
type set struct {
	name string
	// size is the largest number of elements, 0 if there is no limit.
	size     int
	elements map[string]string
	// ranges are the addresses that the last field of a key may have, by the fields
	// before it.
	ranges map[string][]addrRange
}

type addrRange struct{ from, to netip.Addr }

func newSet(name string, size *uint64, elements []*knftables.Element) *set {
	s := &set{name: name, elements: make(map[string]string, len(elements)), ranges: make(map[string][]addrRange)}
	if size != nil {
		s.size = int(*size)
	}
	for _, e := range elements {
		last := len(e.Key) - 1
		if r, ok := parseRange(e.Key[last]); ok {
			before := strings.Join(e.Key[:last], separator)
			s.ranges[before] = append(s.ranges[before], r)
			continue
		}
		s.elements[strings.Join(e.Key, separator)] = strings.Join(e.Value, separator)
	}
	return s
}

// parseRange reads "first-last" or a prefix.
func parseRange(text string) (addrRange, bool) {
	if first, last, ok := strings.Cut(text, "-"); ok {
		from, err := netip.ParseAddr(first)
		to, err2 := netip.ParseAddr(last)
		return addrRange{from, to}, err == nil && err2 == nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return addrRange{}, false
	}
	last := prefix.Masked().Addr().AsSlice()
	for bit := prefix.Bits(); bit < 8*len(last); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	to, _ := netip.AddrFromSlice(last)
	return addrRange{prefix.Masked().Addr(), to}, true
}

// full says whether no other element fits.
func (s *set) full() bool { return s.size > 0 && len(s.elements) >= s.size }

// find returns the value of a key. What the packet has written itself counts.
func (s *set) find(pkt *packet, key string) (value string, found bool) {
	for _, l := range pkt.learned {
		if l.Set == s.name && l.Key == key {
			return l.Value, true
		}
	}
	if value, found = s.elements[key]; found || len(s.ranges) == 0 {
		return value, found
	}
	at := strings.LastIndex(key, separator)
	if at < 0 {
		return "", false
	}
	addr, err := netip.ParseAddr(key[at+len(separator):])
	for _, r := range s.ranges[key[:at]] {
		if err == nil && r.from.Compare(addr) <= 0 && addr.Compare(r.to) <= 0 {
			return "", true
		}
	}
	return "", false
}
