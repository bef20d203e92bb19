// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nfttest

import (
	"net/netip"
	"strings"
	"time"

	"sigs.k8s.io/knftables"
)

// set are the elements of a set or map by key.
type set struct {
	name     string
	elements map[string]string
	// ranges are the addresses that the last field of a key may have, by the fields
	// before it.
	ranges map[string][]addrRange
}

type addrRange struct{ from, to netip.Addr }

func newSet(name string, elements []*knftables.Element) *set {
	s := &set{name: name, elements: make(map[string]string, len(elements)), ranges: make(map[string][]addrRange)}
	for _, e := range elements {
		last := len(e.Key) - 1
		from, to, ok := strings.Cut(e.Key[last], "-")
		if !ok {
			s.elements[strings.Join(e.Key, separator)] = strings.Join(e.Value, separator)
			continue
		}
		before := strings.Join(e.Key[:last], separator)
		s.ranges[before] = append(s.ranges[before], addrRange{netip.MustParseAddr(from), netip.MustParseAddr(to)})
	}
	return s
}

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

// Learned is an element that a packet has written, in nft's words.
type Learned struct {
	Set, Key, Value string
	Timeout         time.Duration
}
