// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"cmp"
	"slices"
)

// MaxWeightedBuckets is the largest number of buckets of endpoints with weights
// that differ.
const MaxWeightedBuckets = 4096

// Buckets returns the number of buckets for each weight, none of which is 0: the
// weights divided by what they have in common or, if those are more than
// [MaxWeightedBuckets], in proportion as close as so many allow, by largest
// remainder. Each has one at least. The result is nil if all are the same, and if
// there are too many weights to tell them apart.
func Buckets(weights []uint32) []uint16 {
	divisor, sum := uint32(0), uint64(0)
	same := true
	for _, w := range weights {
		divisor = gcd(divisor, w)
		sum += uint64(w)
		same = same && w == weights[0]
	}
	if same || len(weights) > MaxWeightedBuckets {
		return nil
	}
	buckets := make([]uint16, len(weights))
	if sum/uint64(divisor) <= MaxWeightedBuckets {
		for i, w := range weights {
			buckets[i] = uint16(w / divisor)
		}
		return buckets
	}
	return apportion(weights, sum, buckets)
}

// apportion fills in MaxWeightedBuckets buckets. Those that get one although they
// have earned less take it from the others.
func apportion(weights []uint32, sum uint64, buckets []uint16) []uint16 {
	seats := uint64(MaxWeightedBuckets)
	open := make([]int, 0, len(weights))
	for i := range weights {
		open = append(open, i)
	}
	for {
		small := open[:0:0]
		rest := open[:0:0]
		for _, i := range open {
			if uint64(weights[i])*seats < sum {
				small = append(small, i)
			} else {
				rest = append(rest, i)
			}
		}
		if len(small) == 0 {
			break
		}
		for _, i := range small {
			buckets[i] = 1
			seats--
			sum -= uint64(weights[i])
		}
		open = rest
	}
	left := seats
	for _, i := range open {
		buckets[i] = uint16(uint64(weights[i]) * seats / sum)
		left -= uint64(buckets[i])
	}
	remainder := func(i int) uint64 { return uint64(weights[i]) * seats % sum }
	slices.SortStableFunc(open, func(a, b int) int { return cmp.Compare(remainder(b), remainder(a)) })
	for _, i := range open[:left] {
		buckets[i]++
	}
	return buckets
}

func gcd(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
