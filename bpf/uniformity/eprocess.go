// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package uniformity

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// masses are the prior masses per bucket that evidence is averaged over. A prior
// of mass c expects shares to be off by some 1/√c of themselves, so there is one for
// dead endpoints, one for deviations of a few percent, and two between.
func masses() []float64 { return []float64{1, 10, 100, 1000} }

// LogE returns the natural logarithm of the evidence that counts, the draws per
// endpoint, do not come from the expected shares: an e-value. Its expectation is at
// most 1 if they do, however often one looks and whenever one stops, so evidence of
// 1/α or more happens with probability α at most (Ville's inequality). 0 says nothing
// either way.
//
// It is the average of two kinds of bets. One is the Dirichlet-mixture likelihood
// ratio of Lindon and Malek (arXiv 2011.03567), which gains if all shares are off. The
// other bets on one endpoint against all others, the average over endpoints, and does
// not get weaker where there are many.
//
// Shares must be positive and add up to 1; nil means equal shares.
func LogE(counts []uint64, shares []float64) (float64, error) {
	if len(counts) == 0 {
		return 0, errors.New("e-value: no endpoints")
	}
	if shares == nil {
		shares = EqualShares(len(counts))
	}
	if err := checkShares(len(counts), shares); err != nil {
		return 0, fmt.Errorf("e-value: %w", err)
	}
	floats := make([]float64, len(counts))
	for i, n := range counts {
		floats[i] = float64(n)
	}
	return logE(floats, shares), nil
}

func logE(counts, shares []float64) float64 {
	total := 0.0
	for _, n := range counts {
		total += n
	}
	if len(counts) == 1 || total == 0 {
		return 0
	}
	var bets logSum
	for _, c := range masses() {
		bets.add(logAllOff(counts, shares, total, c))
		bets.add(logOneOff(counts, shares, total, c))
	}
	return bets.log() - math.Log(float64(2*len(masses())))
}

// logAllOff is the likelihood ratio of shares from a Dirichlet distribution around
// the expected ones.
func logAllOff(counts, shares []float64, total, mass float64) float64 {
	all := mass * float64(len(counts))
	sum := lgamma(all) - lgamma(all+total)
	prior, of := 0.0, math.NaN()
	for i, n := range counts {
		a := all * shares[i]
		if a != of {
			prior, of = lgamma(a), a
		}
		if n > 0 {
			sum += lgamma(a+n) - prior - n*math.Log(shares[i])
		}
	}
	return sum
}

// logOneOff is the average over endpoints of the likelihood ratio of a share from a
// beta distribution around the expected one, against all other endpoints together.
func logOneOff(counts, shares []float64, total, mass float64) float64 {
	var sum logSum
	var p, b, ends float64
	for i, n := range counts {
		if shares[i] != p {
			p = shares[i]
			b = mass * (1 - p) / p
			ends = lgamma(mass+b) - lgamma(mass) - lgamma(b) - lgamma(mass+b+total)
		}
		sum.add(ends + lgamma(mass+n) + lgamma(b+total-n) - n*math.Log(p) - (total-n)*math.Log1p(-p))
	}
	return sum.log() - math.Log(float64(len(counts)))
}

func lgamma(x float64) float64 {
	v, _ := math.Lgamma(x)
	return v
}

// logSum adds numbers of which the logarithms are given, and which may be too large
// for a float64.
type logSum struct {
	max, rest float64
	any       bool
}

func (s *logSum) add(log float64) {
	switch {
	case !s.any:
		s.max, s.rest, s.any = log, 1, true
	case log <= s.max:
		s.rest += math.Exp(log - s.max)
	default:
		s.rest = s.rest*math.Exp(s.max-log) + 1
		s.max = log
	}
}

func (s *logSum) log() float64 { return s.max + math.Log(s.rest) }

// Delay returns after how many draws evidence is expected to reach 1/alpha if
// endpoints get the actual shares in place of the expected ones, within a factor of
// two. It is +Inf if the two are equal, or beyond 10¹² draws.
func Delay(expected, actual []float64, alpha float64) (float64, error) {
	if alpha <= 0 || alpha >= 1 {
		return 0, fmt.Errorf("delay: alpha is %g, not within (0, 1)", alpha)
	}
	if len(expected) == 0 || len(expected) != len(actual) {
		return 0, fmt.Errorf("delay: %d expected and %d actual shares", len(expected), len(actual))
	}
	if err := checkShares(len(expected), expected); err != nil {
		return 0, fmt.Errorf("delay: %w", err)
	}
	if slices.Equal(expected, actual) {
		return math.Inf(1), nil
	}
	const most = 1e12
	enough := func(n float64) bool {
		counts := make([]float64, len(actual))
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
		bets.add(logAllOff(counts, shares, n, c) + (k-1)/2*n/(c*k+n))
		bets.add(logOneOff(counts, shares, n, c))
	}
	return bets.log() - math.Log(float64(2*len(masses())))
}
