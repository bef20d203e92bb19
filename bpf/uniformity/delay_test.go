// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package uniformity

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// deviations are those of the table of detection delays.
func deviations(k int) map[string][]float64 {
	scale := func(factor func(i int) float64) []float64 {
		shares, sum := make([]float64, k), 0.0
		for i := range shares {
			shares[i] = factor(i)
			sum += shares[i]
		}
		for i := range shares {
			shares[i] /= sum
		}
		return shares
	}
	first := func(f float64) func(int) float64 {
		return func(i int) float64 {
			if i == 0 {
				return f
			}
			return 1
		}
	}
	return map[string][]float64{
		"dead": scale(first(0)), "twice": scale(first(2)), "+20 %": scale(first(1.2)),
		"±5 %": scale(func(i int) float64 { return 1 + 0.05*float64(1-2*(i%2)) }),
	}
}

// Deviations are found within 1.5 times of what the best single prior needs
// (../shared/research/anchors.md, §4.2: medians at α = 1e-4).
func TestDetectionDelays(t *testing.T) {
	t.Parallel()
	const alpha, runs, tolerance = 1e-4, 15, 1.5
	for k, table := range map[int]map[string]int{
		2:   {"dead": 18, "twice": 185, "+20 %": 2600, "±5 %": 7800},
		3:   {"dead": 33, "twice": 191, "+20 %": 2900, "±5 %": 11000},
		10:  {"dead": 207, "twice": 443, "+20 %": 9500, "±5 %": 14500},
		50:  {"dead": 2600, "twice": 3500, "+20 %": 73000, "±5 %": 25000},
		200: {"dead": 17000, "twice": 30000, "+20 %": 400000, "±5 %": 46000},
	} {
		actual := deviations(k)
		for kind, best := range table {
			t.Run(fmt.Sprintf("%d endpoints, %s", k, kind), func(t *testing.T) {
				t.Parallel()
				delays := make([]int, runs)
				limit := int(tolerance * float64(best))
				for run := range delays {
					delays[run] = stopsAt(t, EqualShares(k), actual[kind], alpha, looks(2*limit), source(uint64(run)))
					if delays[run] == 0 {
						delays[run] = math.MaxInt
					}
				}
				slices.Sort(delays)
				if median := delays[runs/2]; median > limit {
					t.Errorf("median delay %d, want at most %d (1.5 times %d)", median, limit, best)
				}
				expected, err := Delay(EqualShares(k), actual[kind], alpha)
				if err != nil {
					t.Fatal(err)
				}
				if ratio := expected / float64(delays[runs/2]); ratio < 0.5 || ratio > 2 {
					t.Errorf("Delay says %.0f, the median run took %d", expected, delays[runs/2])
				}
			})
		}
	}
}

func TestDelayOfNoDeviation(t *testing.T) {
	t.Parallel()
	if n, err := Delay(EqualShares(3), EqualShares(3), 1e-4); err != nil || !math.IsInf(n, 1) {
		t.Errorf("delay %v, %v, want +Inf", n, err)
	}
	for _, bad := range []func() (float64, error){
		func() (float64, error) { return Delay(EqualShares(3), EqualShares(2), 1e-4) },
		func() (float64, error) { return Delay(EqualShares(3), EqualShares(3), 1) },
		func() (float64, error) { return Delay(EqualShares(3), EqualShares(3), math.NaN()) },
		func() (float64, error) { return Delay([]float64{1, 0}, EqualShares(2), 1e-4) },
		func() (float64, error) { return Delay(EqualShares(2), []float64{0.5, 0.4}, 1e-4) },
		func() (float64, error) { return Delay(EqualShares(2), []float64{1.5, -0.5}, 1e-4) },
		func() (float64, error) { return Delay(nil, nil, 1e-4) },
	} {
		if n, err := bad(); err == nil {
			t.Errorf("delay %v, want an error", n)
		}
	}
}
