// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package uniformity

import (
	"errors"
	"fmt"
	"math"
)

// masses are the prior masses per endpoint that evidence is averaged over. A prior
// of mass c expects shares to be off by some 1/√c of themselves, so there is one for
// dead endpoints, one for deviations of a few percent, and two between.
func masses() []float64 { return []float64{1, 10, 100, 1000} }

// LogE returns the natural logarithm of the evidence that counts, the draws per
// endpoint, do not come from the expected shares: an e-value. Its expectation is at
// most 1 if they do, however often one looks and whenever one stops, so evidence of
// 1/α or more ever happens with probability α at most (Ville's inequality). 0 says
// nothing either way, and less than 0 that the counts look as expected.
//
// Think of bets against the expected shares at fair odds: nobody can expect to
// multiply his stake, so who does has shown that the odds, the shares, are wrong. The
// stake is spread over two kinds of bets. One is the Dirichlet-mixture likelihood
// ratio of Lindon and Malek (arXiv 2011.03567), which gains if all shares are off. The
// other bets on one endpoint against all others together, with the same prior and a
// part of the stake on each endpoint, and gains if one is off among many.
//
// Shares must be non-negative and add up to 1; nil means equal shares. A draw of an
// endpoint with a share of 0 is impossible: the evidence is +Inf. A call costs some
// 0.2 µs per endpoint; each count may be as large as 10¹².
func LogE(counts []uint64, shares []float64) (float64, error) {
	if len(counts) == 0 {
		return 0, errors.New("e-value: no endpoints")
	}
	if shares == nil {
		shares = EqualShares(len(counts))
	}
	sum, err := sumShares(len(counts), shares)
	if err != nil {
		return 0, fmt.Errorf("e-value: %w", err)
	}
	drawn, possible := make([]float64, 0, len(counts)), make([]float64, 0, len(counts))
	for i, n := range counts {
		switch {
		case shares[i] > 0:
			// Over 10¹⁰ draws, a sum that is 10⁻⁹ off would itself be a deviation.
			drawn, possible = append(drawn, float64(n)), append(possible, shares[i]/sum)
		case n > 0:
			return math.Inf(1), nil
		}
	}
	return logE(drawn, possible), nil
}

// logE is LogE of counts that need not be whole. Shares must be positive.
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
		allOff, oneOff := logBets(counts, shares, total, c)
		bets.add(allOff)
		bets.add(oneOff)
	}
	return bets.log() - math.Log(float64(2*len(masses())))
}

// logBets returns the logarithms of two likelihood ratios to the expected shares. The
// first is of shares from a Dirichlet distribution around the expected ones; the
// second is the average over endpoints of that of a share from a beta distribution,
// which is what the Dirichlet distribution says about one endpoint.
//
// In the textbook form, lnΓ(A) - lnΓ(A+n) + Σ lnΓ(aᵢ+nᵢ) - lnΓ(aᵢ) - nᵢ·ln pᵢ with aᵢ =
// A·pᵢ, numbers of the size of n·ln n cancel. With Stirling's formula put in, they are
// gone from the formula too, and what remains is of the size of the deviations:
//
//	Σ (aᵢ+nᵢ-½)·ln((aᵢ+nᵢ)/((A+n)·pᵢ)) + s(aᵢ+nᵢ) - s(aᵢ) - (k-1)/2·ln((A+n)/A) + s(A) - s(A+n)
func logBets(counts, shares []float64, total, mass float64) (allOff, oneOff float64) {
	k := float64(len(counts))
	prior := mass * k
	posterior := prior + total
	ends := stirlingError(prior) - stirlingError(posterior)
	shrink := math.Log(posterior/prior) / 2 // of one degree of freedom

	var each logSum
	var p, a, b, errA, errB float64
	for i, n := range counts {
		if shares[i] != p {
			p = shares[i]
			a, b = prior*p, prior*(1-p)
			errA, errB = stirlingError(a), stirlingError(b)
		}
		off := n - total*p
		its := gain(a+n, posterior*p, off) - errA
		allOff += its
		others := 0.0
		if b > 0 {
			others = gain(b+total-n, posterior*(1-p), -off) - errB
		}
		each.add(its + others)
	}
	allOff += ends - (k-1)*shrink
	oneOff = each.log() - math.Log(k) + ends - shrink
	return allOff, oneOff
}

// gain is the part of one count, prior included, that is off from the expected one by
// so much.
func gain(count, expected, off float64) float64 {
	ratio := off / expected
	if ratio > -0.5 {
		ratio = math.Log1p(ratio) // precise for small deviations
	} else {
		ratio = math.Log(count / expected) // precise for counts near 0
	}
	return (count-0.5)*ratio + stirlingError(count)
}

// stirlingError returns by how much Stirling's formula for lnΓ(x) is too small.
func stirlingError(x float64) float64 {
	const precise = 8 // from where on the series has all but the last four digits
	if x >= precise {
		r := 1 / x
		rr := r * r
		return r * (1./12 - rr*(1./360-rr*(1./1260-rr*(1./1680-rr/1188))))
	}
	log, _ := math.Lgamma(x)
	return log - (x-0.5)*math.Log(x) + x - math.Log(2*math.Pi)/2
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
