// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package uniformity

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func source(n uint64) rand.Source { return rand.NewPCG(n, 20261201) }

// looks are the numbers of draws after which a run is looked at: each of the first
// hundred, then every 2 % more.
func looks(most int) []int {
	var at []int
	for n := 1; n < most; n = max(n+1, n*102/100) {
		at = append(at, n)
	}
	return append(at, most)
}

// stopsAt returns after how many draws a run raises the alarm, 0 if it does not.
func stopsAt(t *testing.T, expected, actual []float64, alpha float64, looks []int, src rand.Source) int {
	t.Helper()
	counts := make([]uint64, len(expected))
	drawn := 0
	for _, n := range looks {
		for i, more := range multinomial(n-drawn, actual, src) {
			counts[i] += uint64(more)
		}
		drawn = n
		log, err := LogE(counts, expected)
		if err != nil {
			t.Fatal(err)
		}
		if log >= -math.Log(alpha) {
			return n
		}
	}
	return 0
}

// False alarms stay below the promised rate, though every run is looked at hundreds
// of times.
func TestFalseAlarms(t *testing.T) {
	t.Parallel()
	const alpha, runs = 0.05, 600
	for _, shares := range [][]float64{EqualShares(2), EqualShares(10), {0.7, 0.2, 0.05, 0.05}} {
		alarms := 0
		for run := range runs {
			if stopsAt(t, shares, shares, alpha, looks(5000), source(uint64(run))) > 0 {
				alarms++
			}
		}
		// The bound is not tight; three standard deviations above it are a fault.
		if limit := alpha*runs + 3*math.Sqrt(runs*alpha*(1-alpha)); float64(alarms) > limit {
			t.Errorf("%v: %d false alarms in %d runs, want at most %.0f", shares, alarms, runs, limit)
		}
	}
}

// Ten million even draws raise no alarm.
func TestManyEvenDraws(t *testing.T) {
	t.Parallel()
	for _, k := range []int{2, 5, 50} {
		if n := stopsAt(t, EqualShares(k), EqualShares(k), 1e-4, looks(10_000_000), source(uint64(k))); n > 0 {
			t.Errorf("%d endpoints: alarm after %d even draws", k, n)
		}
	}
}

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

// Weights are respected: counts in proportion to them are no evidence, equal counts
// are.
func TestLogERespectsWeights(t *testing.T) {
	t.Parallel()
	shares, err := Shares([]int{3, 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		counts []uint64
		alarm  bool
	}{{[]uint64{3000, 1000}, false}, {[]uint64{2000, 2000}, true}} {
		log, err := LogE(test.counts, shares)
		if err != nil {
			t.Fatal(err)
		}
		if alarm := log > -math.Log(1e-4); alarm != test.alarm {
			t.Errorf("%v by 3:1: ln E = %.1f, want alarm %t", test.counts, log, test.alarm)
		}
	}
}

func TestLogEProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(1, 20), 2, 30).Draw(t, "weights")
		shares, err := Shares(weights)
		if err != nil {
			t.Fatal(err)
		}
		counts := make([]uint64, len(weights))
		for i := range counts {
			counts[i] = rapid.Uint64Range(0, 1e12).Draw(t, "count")
		}
		log, err := LogE(counts, shares)
		if err != nil || math.IsNaN(log) {
			t.Fatalf("ln E = %v, %v", log, err)
		}
		order := rapid.Permutation(indices(len(counts))).Draw(t, "order")
		otherCounts, otherShares := make([]uint64, len(counts)), make([]float64, len(counts))
		for to, from := range order {
			otherCounts[to], otherShares[to] = counts[from], shares[from]
		}
		other, err := LogE(otherCounts, otherShares)
		if err != nil || math.Abs(other-log) > 1e-9*math.Abs(log)+1 {
			t.Errorf("ln E = %v, in another order %v (%v)", log, other, err)
		}
	})
}

func indices(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

func TestLogEOfNothing(t *testing.T) {
	t.Parallel()
	for _, counts := range [][]uint64{{5}, {0, 0, 0}} {
		if log, err := LogE(counts, nil); err != nil || log != 0 {
			t.Errorf("%v: ln E = %v, %v, want 0", counts, log, err)
		}
	}
	if _, err := LogE(nil, nil); err == nil {
		t.Error("no endpoints: no error")
	}
	if _, err := LogE([]uint64{1, 2}, []float64{1, 0}); err == nil {
		t.Error("a share of 0: no error")
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
		func() (float64, error) { return Delay([]float64{1, 0}, EqualShares(2), 1e-4) },
	} {
		if n, err := bad(); err == nil {
			t.Errorf("delay %v, want an error", n)
		}
	}
}

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
		{"the second helps the first", log(1, 25, 21, 1), []bool{false, false, false, false}},
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

func BenchmarkLogE(b *testing.B) {
	for _, k := range []int{5, 50, 4096} {
		counts, shares := make([]uint64, k), EqualShares(k)
		for i := range counts {
			counts[i] = uint64(1000 + i)
		}
		b.Run(fmt.Sprintf("%d endpoints", k), func(b *testing.B) {
			for b.Loop() {
				if _, err := LogE(counts, shares); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
