// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package uniformity_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/veridict/veridict/bpf/uniformity"
)

// TestDetectableEffectOfOneDegree compares with the normal distribution: with
// one degree of freedom the statistic is the square of a shifted normal one.
func TestDetectableEffectOfOneDegree(t *testing.T) {
	for _, tc := range []struct{ alpha, power float64 }{
		{0.05, 0.8}, {0.05, 0.95}, {0.01, 0.9}, {0.0001, 0.5},
	} {
		w, err := uniformity.DetectableEffect(1000, 1, tc.alpha, tc.power)
		if err != nil {
			t.Fatal(err)
		}
		bound := distuv.UnitNormal.Quantile(1 - tc.alpha/2)
		shift := w * math.Sqrt(1000)
		got := distuv.UnitNormal.Survival(bound-shift) + distuv.UnitNormal.CDF(-bound-shift)
		if math.Abs(got-tc.power) > 1e-6 {
			t.Errorf("alpha %v: an effect of %v is found with probability %v, want %v", tc.alpha, w, got, tc.power)
		}
	}
}

// TestDetectableEffectOfTables compares with the noncentrality that tables of
// the noncentral chi-square distribution give for 5 % and 80 %.
func TestDetectableEffectOfTables(t *testing.T) {
	for dof, noncentrality := range map[int]float64{1: 7.849, 2: 9.635, 4: 11.935, 10: 16.241} {
		w, err := uniformity.DetectableEffect(100, dof, 0.05, 0.8)
		if err != nil {
			t.Fatal(err)
		}
		if got := w * w * 100; math.Abs(got-noncentrality) > 0.005 {
			t.Errorf("%d degrees of freedom: noncentrality %.3f, want %.3f", dof, got, noncentrality)
		}
	}
}

func TestDetectableEffectRefuses(t *testing.T) {
	for _, tc := range []struct {
		name         string
		n, dof       int
		alpha, power float64
	}{
		{"no connections", 0, 1, 0.05, 0.8},
		{"one endpoint", 100, 0, 0.05, 0.8},
		{"alpha 0", 100, 1, 0, 0.8},
		{"power 1", 100, 1, 0.05, 1},
		{"power below alpha", 100, 1, 0.5, 0.4},
		{"NaN", 100, 1, math.NaN(), 0.8},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if w, err := uniformity.DetectableEffect(tc.n, tc.dof, tc.alpha, tc.power); err == nil {
				t.Errorf("got an effect of %v, want an error", w)
			}
		})
	}
}

// TestShareDeviation moves one share and computes w from its definition.
func TestShareDeviation(t *testing.T) {
	const share, deviation, others = 0.2, 0.1, 4
	gain := share * deviation
	w := math.Sqrt(gain*gain/share + others*(gain/others)*(gain/others)/share)
	if got := uniformity.ShareDeviation(w, share); math.Abs(got-deviation) > 1e-12 {
		t.Errorf("got %v, want %v", got, deviation)
	}
}

func TestHolm(t *testing.T) {
	for _, tc := range []struct {
		name          string
		pvalues, want []float64
	}{
		{"none", nil, []float64{}},
		{"one stays", []float64{0.03}, []float64{0.03}},
		{"textbook", []float64{0.01, 0.04, 0.03, 0.005}, []float64{0.03, 0.06, 0.06, 0.02}},
		{"at most 1", []float64{0.9, 0.8}, []float64{1, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, uniformity.Holm(tc.pvalues), cmpopts.EquateApprox(0, 1e-12)); diff != "" {
				t.Errorf("adjusted p-values (-want +got):\n%s", diff)
			}
		})
	}
}
