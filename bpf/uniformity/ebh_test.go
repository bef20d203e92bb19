// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package uniformity

import (
	"math"
	"slices"
	"testing"
)

func TestEBH(t *testing.T) {
	t.Parallel()
	log := func(values ...float64) []float64 {
		for i := range values {
			values[i] = math.Log(values[i])
		}
		return values
	}
	tests := []struct {
		name string
		logE []float64
		want []bool
	}{
		{"none", nil, []bool{}},
		{"one, enough", log(20), []bool{true}},
		{"one, not enough", log(19), []bool{false}},
		{"of two, the bound is twice as high", log(30, 1), []bool{false, false}},
		{"of two, both", log(20, 20), []bool{true, true}},
		{"the second helps the first", log(1, 45, 41, 1), []bool{false, true, true, false}},
		{"the second cannot help the first", log(1, 45, 39, 1), []bool{false, false, false, false}},
		{"certain", []float64{math.Inf(1), math.Inf(-1), math.NaN()}, []bool{true, false, false}},
		{"a few in order of their own", log(1, 90, 40, 28), []bool{false, true, true, true}},
	}
	for _, test := range tests {
		if got := EBH(test.logE, 0.05); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// Of the services that e-BH picks, at most the promised share is even.
func TestEBHBoundsFalseDiscoveries(t *testing.T) {
	t.Parallel()
	const services, uneven, alpha, runs = 40, 8, 0.1, 60
	shares, actual := EqualShares(4), deviations(4)["twice"]
	sum := 0.0
	for run := range runs {
		src := source(uint64(run))
		logs := make([]float64, services)
		for i := range logs {
			from := shares
			if i < uneven {
				from = actual
			}
			counts := make([]uint64, len(shares))
			for j, n := range multinomial(600, from, src) {
				counts[j] = uint64(n)
			}
			var err error
			if logs[i], err = LogE(counts, shares); err != nil {
				t.Fatal(err)
			}
		}
		picked, wrong := 0, 0
		for i, yes := range EBH(logs, alpha) {
			if yes {
				picked++
				if i >= uneven {
					wrong++
				}
			}
		}
		if picked == 0 {
			t.Fatalf("run %d: nothing found", run)
		}
		sum += float64(wrong) / float64(picked)
	}
	if rate := sum / runs; rate > alpha {
		t.Errorf("rate of false discoveries %.3f, want at most %.3f", rate, alpha)
	}
}
