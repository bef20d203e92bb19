// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package uniformity_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/veridict/veridict/bpf/uniformity"
)

func TestChiSquare(t *testing.T) {
	for _, tc := range []struct {
		name   string
		counts []int
		shares []float64
		want   uniformity.Result
	}{
		{
			name:   "as expected",
			counts: []int{100, 100, 100},
			want:   uniformity.Result{N: 300, DegreesOfFreedom: 2, PValue: 1},
		},
		{
			// Two degrees of freedom: the p-value is exp(-statistic/2).
			name:   "closed form for two degrees of freedom",
			counts: []int{110, 100, 90},
			want:   uniformity.Result{N: 300, Statistic: 2, DegreesOfFreedom: 2, PValue: math.Exp(-1)},
		},
		{
			// One degree of freedom: the p-value is erfc(sqrt(statistic/2)).
			name:   "closed form for one degree of freedom",
			counts: []int{60, 40},
			want:   uniformity.Result{N: 100, Statistic: 4, DegreesOfFreedom: 1, PValue: math.Erfc(math.Sqrt2)},
		},
		{
			// Mendel's peas, 9:3:3:1, as printed in textbooks.
			name:   "unequal shares",
			counts: []int{315, 108, 101, 32},
			shares: []float64{9. / 16, 3. / 16, 3. / 16, 1. / 16},
			want:   uniformity.Result{N: 556, Statistic: 0.470024, DegreesOfFreedom: 3, PValue: 0.925426},
		},
		{
			name:   "one endpoint",
			counts: []int{42},
			want:   uniformity.Result{N: 42, PValue: 1},
		},
		{
			name:   "no connections",
			counts: []int{0, 0},
			want:   uniformity.Result{DegreesOfFreedom: 1, PValue: 1},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := uniformity.ChiSquare(tc.counts, tc.shares)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

func TestChiSquareRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		counts []int
		shares []float64
		want   string
	}{
		{"no endpoints", nil, nil, "chi-square: no endpoints"},
		{"negative count", []int{1, -1}, nil, "chi-square: count 1 is negative: -1"},
		{"too few shares", []int{1, 2}, []float64{1}, "chi-square: 1 shares for 2 endpoints"},
		{"zero share", []int{1, 2}, []float64{1, 0}, "chi-square: share 1 is not positive: 0"},
		{"NaN share", []int{1, 2}, []float64{math.NaN(), 1}, "chi-square: share 0 is not a share: NaN"},
		{"wrong sum", []int{1, 2}, []float64{0.5, 0.25}, "chi-square: shares add up to 0.75, not 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := uniformity.ChiSquare(tc.counts, tc.shares)
			if err == nil || err.Error() != tc.want {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestPValuesAreUniform draws from the null hypothesis: a p-value must then be
// below α in a fraction α of the runs, for every α.
func TestPValuesAreUniform(t *testing.T) {
	for _, tc := range []struct {
		name    string
		weights []int
	}{
		{"two equal", []int{1, 1}},
		{"five equal", []int{1, 1, 1, 1, 1}},
		{"weighted", []int{1, 2, 3, 10}},
		{"forty equal", slices.Repeat([]int{1}, 40)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const runs, connections = 2000, 4000
			shares, err := uniformity.Shares(tc.weights)
			if err != nil {
				t.Fatal(err)
			}
			var owners []int // an endpoint of weight w owns w of the buckets
			for endpoint, weight := range tc.weights {
				owners = append(owners, slices.Repeat([]int{endpoint}, weight)...)
			}
			random := rand.New(rand.NewPCG(1, 2))
			pvalues := make([]float64, runs)
			for run := range pvalues {
				counts := make([]int, len(tc.weights))
				for range connections {
					counts[owners[random.IntN(len(owners))]]++
				}
				result, err := uniformity.ChiSquare(counts, shares)
				if err != nil {
					t.Fatal(err)
				}
				pvalues[run] = result.PValue
			}
			// 1.95/√runs is the 0.1 % point of Kolmogorov's statistic; the
			// lattice of two counts adds up to the size of its largest step.
			limit := 1.95/math.Sqrt(runs) + 1/math.Sqrt(connections)
			if distance := distanceFromUniform(pvalues); distance > limit {
				t.Errorf("the p-values' distribution is %.4f from uniform, want at most %.4f", distance, limit)
			}
		})
	}
}

// distanceFromUniform returns the Kolmogorov-Smirnov distance.
func distanceFromUniform(values []float64) float64 {
	slices.Sort(values)
	distance, n := 0.0, float64(len(values))
	for i, value := range values {
		distance = max(distance, value-float64(i)/n, float64(i+1)/n-value)
	}
	return distance
}

func TestSharesRefusesZero(t *testing.T) {
	if _, err := uniformity.Shares([]int{1, 0}); err == nil {
		t.Error("a weight of 0 was accepted")
	}
}
