// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package uniformity

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// shareTolerance is how far the sum of expected shares may be from 1.
const shareTolerance = 1e-9

// Result is the outcome of a chi-square test.
type Result struct {
	// N is the number of connections counted.
	N int
	// Statistic is Pearson's sum of (observed - expected)²/expected.
	Statistic float64
	// DegreesOfFreedom is one less than the number of endpoints.
	DegreesOfFreedom int
	// PValue is the probability of a statistic at least as large if the
	// shares are as expected. It is 1 where there is nothing to test: one
	// endpoint, or no connection.
	PValue float64
}

// ChiSquare tests whether counts, the connections per endpoint, agree with the
// expected shares. Shares must be positive and add up to 1; nil means equal
// shares. The p-value is an approximation that is good where the expected
// count of each endpoint is at least 5; below, use [Simulated].
func ChiSquare(counts []int, shares []float64) (Result, error) {
	result, shares, err := tally(counts, shares)
	if err != nil {
		return Result{}, fmt.Errorf("chi-square: %w", err)
	}
	if result.untestable() {
		return result, nil
	}
	result.Statistic = pearson(counts, shares, result.N)
	result.PValue = distuv.ChiSquared{K: float64(result.DegreesOfFreedom)}.Survival(result.Statistic)
	return result, nil
}

// tally checks what a test is given, fills in equal shares, and returns a result
// without the statistic.
func tally(counts []int, shares []float64) (Result, []float64, error) {
	if len(counts) == 0 {
		return Result{}, nil, errors.New("no endpoints")
	}
	if shares == nil {
		shares = EqualShares(len(counts))
	}
	if err := checkShares(len(counts), shares); err != nil {
		return Result{}, nil, err
	}
	result := Result{DegreesOfFreedom: len(counts) - 1, PValue: 1}
	for i, count := range counts {
		if count < 0 {
			return Result{}, nil, fmt.Errorf("count %d is negative: %d", i, count)
		}
		result.N += count
	}
	return result, shares, nil
}

func (r Result) untestable() bool { return r.N == 0 || r.DegreesOfFreedom == 0 }

// pearson returns the chi-square statistic of n connections.
func pearson(counts []int, shares []float64, n int) float64 {
	statistic := 0.0
	for i, count := range counts {
		expected := shares[i] * float64(n)
		deviation := float64(count) - expected
		statistic += deviation * deviation / expected
	}
	return statistic
}

// EqualShares returns n shares of 1/n.
func EqualShares(n int) []float64 {
	shares := make([]float64, n)
	for i := range shares {
		shares[i] = 1 / float64(n)
	}
	return shares
}

// Shares turns weights, of which none may be negative or zero, into shares.
func Shares(weights []int) ([]float64, error) {
	total := 0.0
	for i, weight := range weights {
		if weight <= 0 {
			return nil, fmt.Errorf("shares: weight %d is not positive: %d", i, weight)
		}
		total += float64(weight)
	}
	shares := make([]float64, len(weights))
	for i, weight := range weights {
		shares[i] = float64(weight) / total
	}
	return shares, nil
}

// checkShares says what is wrong with the shares of n endpoints, all of which can be
// drawn.
func checkShares(n int, shares []float64) error {
	if _, err := sumShares(n, shares); err != nil {
		return err
	}
	if i := slices.Index(shares, 0); i >= 0 {
		return fmt.Errorf("share %d is not positive: 0", i)
	}
	return nil
}

// sumShares returns the sum of the shares of n endpoints: 1 but for rounding.
func sumShares(n int, shares []float64) (float64, error) {
	if len(shares) != n {
		return 0, fmt.Errorf("%d shares for %d endpoints", len(shares), n)
	}
	sum := 0.0
	for i, share := range shares {
		if !(share >= 0) { // also true for NaN
			return 0, fmt.Errorf("share %d is not a share: %v", i, share)
		}
		sum += share
	}
	if !(math.Abs(sum-1) <= shareTolerance) {
		return 0, fmt.Errorf("shares add up to %v, not 1", sum)
	}
	return sum, nil
}
