// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package uniformity

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// DetectableEffect returns the smallest effect that a chi-square test of n
// connections with dof degrees of freedom at significance level alpha finds
// with probability power. The effect is Cohen's w, the square root of
// Σ (actual - expected)²/expected over the shares; [ShareDeviation] says what
// it means for one endpoint.
//
// n and dof must be positive, alpha and power within (0, 1), power above alpha.
func DetectableEffect(n, dof int, alpha, power float64) (float64, error) {
	switch {
	case n <= 0:
		return 0, fmt.Errorf("detectable effect: n is not positive: %d", n)
	case dof <= 0:
		return 0, fmt.Errorf("detectable effect: dof is not positive: %d", dof)
	case !(alpha > 0 && alpha < power && power < 1):
		return 0, fmt.Errorf("detectable effect: want 0 < alpha < power < 1, have alpha %v, power %v", alpha, power)
	}
	critical := distuv.ChiSquared{K: float64(dof)}.Quantile(1 - alpha)
	low, high := 0.0, 1.0
	for noncentralSurvival(critical, dof, high) < power {
		low, high = high, 2*high
	}
	for high-low > 1e-9*high {
		middle := (low + high) / 2
		if noncentralSurvival(critical, dof, middle) < power {
			low = middle
		} else {
			high = middle
		}
	}
	return math.Sqrt(high / float64(n)), nil
}

// ShareDeviation translates Cohen's w into the relative deviation of one
// endpoint with the given expected share, all others making up for it in
// proportion: 0.1 means that it gets a tenth more or less than its share.
// share must be within (0, 1).
func ShareDeviation(w, share float64) float64 {
	return w * math.Sqrt((1-share)/share)
}

// noncentralSurvival returns P(X > x) of the noncentral chi-square
// distribution: a mixture of central ones whose weights are Poisson
// probabilities.
func noncentralSurvival(x float64, dof int, noncentrality float64) float64 {
	poisson := distuv.Poisson{Lambda: noncentrality / 2}
	// Terms further away than 12 standard deviations add less than 1e-15.
	spread := 12*math.Sqrt(poisson.Lambda) + 40
	first := int(max(0, math.Floor(poisson.Lambda-spread)))
	last := int(math.Ceil(poisson.Lambda + spread))
	sum := 0.0
	for j := first; j <= last; j++ {
		sum += poisson.Prob(float64(j)) * distuv.ChiSquared{K: float64(dof + 2*j)}.Survival(x)
	}
	return min(1, sum)
}
