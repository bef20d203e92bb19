// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package uniformity

import (
	"fmt"
	"math"
	"slices"
)

// Delay returns after how many draws [LogE] is expected to reach ln(1/alpha) if
// endpoints get the actual shares in place of the expected ones, within a factor of
// two: the smallest effect that can be seen is that of which the delay has passed. It
// is +Inf if the two are equal, or beyond 10¹² draws. Both must have as many shares as
// there are endpoints, which add up to 1 and of which none is negative; those expected
// must be positive. alpha must be within (0, 1).
func Delay(expected, actual []float64, alpha float64) (float64, error) {
	if !(alpha > 0 && alpha < 1) { // also true for NaN
		return 0, fmt.Errorf("delay: alpha is %g, not within (0, 1)", alpha)
	}
	if err := checkShares(len(expected), expected); err != nil {
		return 0, fmt.Errorf("delay: expected: %w", err)
	}
	if _, err := sumShares(len(expected), actual); err != nil {
		return 0, fmt.Errorf("delay: actual: %w", err)
	}
	if len(expected) == 1 || slices.Equal(expected, actual) {
		return math.Inf(1), nil
	}
	const most = 1e12
	counts := make([]float64, len(actual))
	enough := func(n float64) bool {
		for i, share := range actual {
			counts[i] = n * share
		}
		return expectedLogE(counts, expected, n) >= -math.Log(alpha)
	}
	low, high := 1.0, 2.0
	for !enough(high) {
		low, high = high, 2*high
		if high > most {
			return math.Inf(1), nil
		}
	}
	for high-low > 1 && high/low > 1.001 {
		if middle := (low + high) / 2; enough(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high, nil
}

// expectedLogE is logE of expected counts, with what chance adds: counts scatter
// around them, and the bet on all shares gains half a unit for each degree of freedom
// as far as its prior has given way to the counts.
func expectedLogE(counts, shares []float64, n float64) float64 {
	k := float64(len(counts))
	var bets logSum
	for _, c := range masses() {
		allOff, oneOff := logBets(counts, shares, n, c)
		bets.add(allOff + (k-1)/2*n/(c*k+n))
		bets.add(oneOff)
	}
	return bets.log() - math.Log(float64(2*len(masses())))
}
