// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package uniformity

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestSimulatedAgreesWithChiSquare(t *testing.T) {
	t.Parallel()
	counts := []int{110, 95, 80, 115}
	approximate, err := ChiSquare(counts, nil)
	if err != nil {
		t.Fatal(err)
	}
	simulated, err := Simulated(counts, nil, 4000, source(1))
	if err != nil {
		t.Fatal(err)
	}
	g, err := GTest(counts, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string]Result{"simulated": simulated, "G-test": g} {
		if math.Abs(other.PValue-approximate.PValue) > 0.03 {
			t.Errorf("%s: p = %.3f, the chi-square test says %.3f", name, other.PValue, approximate.PValue)
		}
	}
	if few, err := Simulated([]int{3, 0}, nil, 4000, source(2)); err != nil || math.Abs(few.PValue-0.25) > 0.03 {
		t.Errorf("3 of 3 to one of two: p = %.3f, %v, want 1/4", few.PValue, err)
	}
	if v := Variation(approximate); math.Abs(v-math.Sqrt(approximate.Statistic/3)) > 1e-12 {
		t.Errorf("variation %v", v)
	}
}

// Of counts that differ from their shares by so much, so much is the effect.
func TestEffect(t *testing.T) {
	t.Parallel()
	result, err := ChiSquare([]int{120, 95, 95, 95, 95}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := ShareDeviation(Effect(result), 0.2); math.Abs(got-0.2) > 1e-12 {
		t.Errorf("a fifth too many: deviation %v", got)
	}
	if got := Effect(Result{}); got != 0 {
		t.Errorf("no connections: effect %v", got)
	}
}

// Two endpoints that are counted as one hide what is between them: no statistic grows.
func TestMergedEndpointsShowNoMore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(1, 20), 3, 30).Draw(t, "weights")
		counts := rapid.SliceOfN(rapid.IntRange(0, 1e6), len(weights), len(weights)).Draw(t, "counts")
		merged := func(list []int) []int { return append([]int{list[0] + list[1]}, list[2:]...) }
		shares, err := Shares(weights)
		if err != nil {
			t.Fatal(err)
		}
		fewer, err := Shares(merged(weights))
		if err != nil {
			t.Fatal(err)
		}
		for name, test := range map[string]func([]int, []float64) (Result, error){"chi-square": ChiSquare, "G-test": GTest} {
			before, err := test(counts, shares)
			if err != nil {
				t.Fatal(err)
			}
			after, err := test(merged(counts), fewer)
			if err != nil {
				t.Fatal(err)
			}
			if after.Statistic > before.Statistic*(1+1e-9)+1e-6 {
				t.Errorf("%s: statistic %v, of merged endpoints %v", name, before.Statistic, after.Statistic)
			}
		}
	})
}

func TestFixedTestsRefuse(t *testing.T) {
	t.Parallel()
	for want, test := range map[string]func() (Result, error){
		"g-test: no endpoints":               func() (Result, error) { return GTest(nil, nil) },
		"simulate: runs is not positive: 0":  func() (Result, error) { return Simulated([]int{1, 2}, nil, 0, source(1)) },
		"simulate: count 1 is negative: -2":  func() (Result, error) { return Simulated([]int{1, -2}, nil, 9, source(1)) },
		"g-test: share 1 is not positive: 0": func() (Result, error) { return GTest([]int{1, 2}, []float64{1, 0}) },
	} {
		if _, err := test(); err == nil || err.Error() != want {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

// Where there is nothing to test, nothing is found.
func TestFixedTestsOfNothing(t *testing.T) {
	t.Parallel()
	for _, counts := range [][]int{{7}, {0, 0}} {
		g, err := GTest(counts, nil)
		if err != nil || g.PValue != 1 || Variation(g) != 0 {
			t.Errorf("g-test of %v: %+v, %v", counts, g, err)
		}
		simulated, err := Simulated(counts, nil, 9, source(1))
		if err != nil || simulated.PValue != 1 {
			t.Errorf("simulation of %v: %+v, %v", counts, simulated, err)
		}
	}
}
