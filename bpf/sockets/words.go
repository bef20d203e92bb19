// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"encoding/binary"
	"net/netip"
)

// wordsOf returns an address as the programs keep it: four words in network order,
// an IPv4 address in the IPv4-mapped form.
func wordsOf(addr netip.Addr) (words [4]uint32) {
	b := addr.As16()
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return words
}

func addrOf(words [4]uint32) netip.Addr {
	var b [16]byte
	for i, word := range words {
		binary.NativeEndian.PutUint32(b[4*i:], word)
	}
	return netip.AddrFrom16(b).Unmap()
}
