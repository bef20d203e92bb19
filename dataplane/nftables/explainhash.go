// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Numbers of enum nft_hash_attributes.
const (
	hashSREG, hashDREG, hashLen, hashModulus, hashSeedAttr, hashOffset = 1, 2, 3, 4, 5, 6
)

// hash computes what the kernel computes, so that the bucket of a client is known.
func (w *walk) hash(e expression) (ruleVerdict, error) {
	register, err := w.registers.at(e.number(hashSREG))
	length := e.number(hashLen)
	if err != nil || int(length) > len(register) {
		return verdictDrop, fmt.Errorf("%d bytes of register %d", length, e.number(hashSREG))
	}
	n := e.number(hashModulus)
	bucket := uint32(uint64(jhash(register[:length], e.number(hashSeedAttr))) * uint64(n) >> 32)
	w.drawn = true
	w.step("draw", Step{Detail: fmt.Sprintf("bucket %d of %d by the hash of the client's address", bucket, n)})
	return w.load(e, hashDREG, appendWord(nil, bucket+e.number(hashOffset)))
}

// jhash is the hash function of include/linux/jhash.h for keys of whole words.
func jhash(key []byte, seed uint32) uint32 {
	a := 0xdeadbeef + uint32(len(key)) + seed
	b, c := a, a
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(key[4*i:]) }
	for ; len(key) > 12; key = key[12:] {
		a, b, c = a+word(0), b+word(1), c+word(2)
		for _, turn := range [][2]int{{4, 6}, {8, 16}, {19, 4}} {
			a, b, c = jhashTurn(a, b, c, turn[0])
			a, b, c = b, c, a
			a, b, c = jhashTurn(a, b, c, turn[1])
			a, b, c = b, c, a
		}
	}
	switch len(key) {
	case 12:
		c += word(2)
		fallthrough
	case 8:
		b += word(1)
		fallthrough
	case 4:
		a += word(0)
	}
	for _, turn := range []int{14, 11, 25, 16, 4, 14, 24} {
		c ^= b
		c -= bits.RotateLeft32(b, turn)
		a, b, c = b, c, a
	}
	return b
}

// jhashTurn is a third of a half of the function that mixes.
func jhashTurn(a, b, c uint32, turn int) (uint32, uint32, uint32) {
	a -= c
	a ^= bits.RotateLeft32(c, turn)
	c += b
	return a, b, c
}
