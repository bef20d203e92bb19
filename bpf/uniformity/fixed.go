// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package uniformity

import (
	"fmt"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/stat/distuv"
)

// GTest is the likelihood-ratio test of the same question as [ChiSquare]; Statistic
// is 2·Σ observed·ln(observed/expected). For many connections the two agree.
func GTest(counts []int, shares []float64) (Result, error) {
	result, shares, err := tally(counts, shares)
	if err != nil {
		return Result{}, fmt.Errorf("g-test: %w", err)
	}
	if result.untestable() {
		return result, nil
	}
	sum := 0.0
	for i, n := range counts {
		if n > 0 {
			sum += float64(n) * math.Log(float64(n)/(shares[i]*float64(result.N)))
		}
	}
	// Rounding can make the sum of perfect counts negative.
	result.Statistic = max(2*sum, 0)
	result.PValue = distuv.ChiSquared{K: float64(result.DegreesOfFreedom)}.Survival(result.Statistic)
	return result, nil
}

// Simulated is [ChiSquare] with a p-value from so many simulated runs in place of the
// approximation, for expected counts below 5. The p-value is at least 1/(runs+1); the
// same source in the same state gives the same one.
func Simulated(counts []int, shares []float64, runs int, source rand.Source) (Result, error) {
	if runs <= 0 {
		return Result{}, fmt.Errorf("simulate: runs is not positive: %d", runs)
	}
	result, shares, err := tally(counts, shares)
	if err != nil {
		return Result{}, fmt.Errorf("simulate: %w", err)
	}
	if result.untestable() {
		return result, nil
	}
	result.Statistic = pearson(counts, shares, result.N)
	// Equal statistics may differ in their last digits.
	atLeast := result.Statistic * (1 - 1e-9)
	extreme := 0
	for range runs {
		if pearson(multinomial(result.N, shares, source), shares, result.N) >= atLeast {
			extreme++
		}
	}
	result.PValue = float64(extreme+1) / float64(runs+1)
	return result, nil
}

// multinomial draws n times by the shares.
func multinomial(n int, shares []float64, source rand.Source) []int {
	counts := make([]int, len(shares))
	rest := 1.0
	for i, share := range shares {
		if n == 0 {
			break
		}
		if i == len(shares)-1 || share >= rest {
			counts[i] = n
			break
		}
		if share > 0 {
			counts[i] = int(distuv.Binomial{N: float64(n), P: share / rest, Src: source}.Rand())
		}
		n -= counts[i]
		rest -= share
	}
	return counts
}

// Variation compares the scatter of counts with that of chance: the coefficient of
// variation of observed over expected counts, as a multiple of what even draws show
// on average. It is about 1 for even draws, whatever their number, and 0 where there
// is nothing to compare.
func Variation(r Result) float64 {
	if r.untestable() {
		return 0
	}
	return math.Sqrt(r.Statistic / float64(r.DegreesOfFreedom))
}

// Effect returns how far counts are from their shares as Cohen's w, the unit of
// [DetectableEffect]: the root of Σ (observed - expected)²/expected over shares. Unlike
// the statistic it does not grow with the connections. Even draws are not at 0 but
// scatter around √(DegreesOfFreedom/N): see [Variation]. It is 0 without connections.
func Effect(r Result) float64 {
	if r.N == 0 {
		return 0
	}
	return math.Sqrt(r.Statistic / float64(r.N))
}
