// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/veridict/veridict/control/topology"
)

func TestTooManyWeights(t *testing.T) {
	t.Parallel()
	weights := slices.Repeat([]uint32{1}, topology.MaxWeightedBuckets)
	weights[7] = 10000
	if got := topology.Buckets(weights); slices.Max(got) != 1 || slices.Min(got) != 1 {
		t.Errorf("as many weights as buckets: %d to %d buckets, want one each", slices.Min(got), slices.Max(got))
	}
	if got := topology.Buckets(append(weights, 1)); got != nil {
		t.Errorf("%d weights have buckets of their own", len(got))
	}
}

// TestAnyBuckets says what proportions may be relied on.
func TestAnyBuckets(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.OneOf(rapid.Uint32Range(1, 10000), rapid.SampledFrom([]uint32{1, 100, 10000})), 1, 40).Draw(t, "weights")
		if rapid.Bool().Draw(t, "many") {
			weights = slices.Repeat(weights, 60)
		}
		buckets := topology.Buckets(weights)
		if buckets == nil {
			if slices.Min(weights) != slices.Max(weights) {
				t.Fatal("weights that differ are ignored")
			}
			return
		}
		sum, total := 0, uint64(0)
		for i, b := range buckets {
			sum += int(b)
			total += uint64(weights[i])
			if b == 0 {
				t.Fatalf("weight %d has no bucket", weights[i])
			}
		}
		if sum > topology.MaxWeightedBuckets {
			t.Fatalf("%d buckets", sum)
		}
		for i, w := range weights {
			for j, v := range weights {
				if w > v && buckets[i] < buckets[j] {
					t.Fatalf("weight %d has %d buckets, %d has %d", w, buckets[i], v, buckets[j])
				}
			}
			// No endpoint gets more than its share, except by the one bucket that
			// each has and by rounding up.
			share := float64(w) * float64(topology.MaxWeightedBuckets) / float64(total)
			if sum == topology.MaxWeightedBuckets && float64(buckets[i]) > max(1, math.Ceil(share)) {
				t.Fatalf("weight %d of %d has %d buckets, want at most %g", w, total, buckets[i], math.Ceil(share))
			}
		}
	})
}
