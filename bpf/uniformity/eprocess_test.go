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

// The promise, computed instead of simulated: all runs of even draws between two
// endpoints, each looked at after every draw and stopped at the first alarm. Bets at
// fair odds gain nothing on average, wherever they are stopped, and alarms are rarer
// than promised.
func TestEveryRunOfTwo(t *testing.T) {
	t.Parallel()
	const alpha, draws = 0.05, 400
	for _, shares := range [][]float64{{0.5, 0.5}, {0.8, 0.2}} {
		running := []float64{1} // the probability of runs with so many draws of the first
		alarms, evidence := 0.0, 0.0
		for n := 1; n <= draws; n++ {
			next := make([]float64, n+1)
			for first, p := range running {
				next[first] += p * shares[1]
				next[first+1] += p * shares[0]
			}
			running = next
			for first, p := range running {
				log, err := LogE([]uint64{uint64(first), uint64(n - first)}, shares)
				if err != nil {
					t.Fatal(err)
				}
				if alarm := log >= -math.Log(alpha); alarm || n == draws {
					evidence += p * math.Exp(log)
					if alarm {
						alarms += p
					}
					running[first] = 0
				}
			}
		}
		if math.Abs(evidence-1) > 1e-9 {
			t.Errorf("%v: the expected evidence is %v, want 1", shares, evidence)
		}
		if alarms == 0 || alarms > alpha {
			t.Errorf("%v: false alarms with probability %v, want at most %v", shares, alarms, alpha)
		}
	}
}

// The same of weighted draws among three, after a fixed number of draws.
func TestExpectedEvidenceOfThree(t *testing.T) {
	t.Parallel()
	const draws = 30
	shares := []float64{0.6, 0.3, 0.1}
	evidence := 0.0
	for i := range draws + 1 {
		for j := range draws + 1 - i {
			counts := []uint64{uint64(i), uint64(j), uint64(draws - i - j)}
			log, err := LogE(counts, shares)
			if err != nil {
				t.Fatal(err)
			}
			probability := lgamma(draws + 1)
			for c, n := range counts {
				probability += float64(n)*math.Log(shares[c]) - lgamma(float64(n)+1)
			}
			evidence += math.Exp(probability + log)
		}
	}
	if math.Abs(evidence-1) > 1e-9 {
		t.Errorf("the expected evidence is %v, want 1", evidence)
	}
}

func lgamma(x float64) float64 {
	log, _ := math.Lgamma(x)
	return log
}

// The formula in use agrees with that of the paper where the latter is precise.
func TestLogBetsAsInThePaper(t *testing.T) {
	t.Parallel()
	paper := func(counts, shares []float64, total, prior float64) float64 {
		log := lgamma(prior) - lgamma(prior+total)
		for i, n := range counts {
			a := prior * shares[i]
			log += lgamma(a+n) - lgamma(a) - n*math.Log(shares[i])
		}
		return log
	}
	rapid.Check(t, func(t *rapid.T) {
		shares, err := Shares(rapid.SliceOfN(rapid.IntRange(1, 20), 2, 30).Draw(t, "weights"))
		if err != nil {
			t.Fatal(err)
		}
		counts, total := make([]float64, len(shares)), 0.0
		for i := range counts {
			counts[i] = float64(rapid.IntRange(0, 1000).Draw(t, "count"))
			total += counts[i]
		}
		mass := rapid.SampledFrom(masses()).Draw(t, "mass")
		prior := mass * float64(len(shares))
		var each logSum
		for i, n := range counts {
			each.add(paper([]float64{n, total - n}, []float64{shares[i], 1 - shares[i]}, total, prior))
		}
		allOff, oneOff := logBets(counts, shares, total, mass)
		for name, pair := range map[string][2]float64{
			"all off": {allOff, paper(counts, shares, total, prior)},
			"one off": {oneOff, each.log() - math.Log(float64(len(shares)))},
		} {
			if got, want := pair[0], pair[1]; math.Abs(got-want) > 1e-6 {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
	})
}

// Counts that scatter as chance would have it are no evidence, be they ever so large:
// nothing of the size of the counts is left to be rounded.
func TestLogEOfHugeCounts(t *testing.T) {
	t.Parallel()
	for _, k := range []int{2, 50, 4096} {
		last := 0.0
		for _, each := range []uint64{1e4, 1e6, 1e8, 1e10, 1e12} {
			counts := slices.Repeat([]uint64{each}, k)
			deviation := uint64(math.Sqrt(float64(each)))
			for i := 0; i < k; i += 2 {
				counts[i] += deviation
				counts[i+1] -= deviation
			}
			log, err := LogE(counts, nil)
			if err != nil || log >= last {
				t.Errorf("%d endpoints, %d draws of each: ln E = %v, %v, want below %v", k, each, log, err, last)
			}
			last = log
		}
	}
}

// The same, simulated, where there are too many runs to compute: each is looked at
// hundreds of times.
func TestFalseAlarms(t *testing.T) {
	t.Parallel()
	const alpha, runs = 0.05, 200
	for _, shares := range [][]float64{EqualShares(10), EqualShares(40), {0.7, 0.2, 0.05, 0.05}} {
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
	for i, shares := range [][]float64{EqualShares(2), EqualShares(5), EqualShares(50), {0.7, 0.2, 0.05, 0.05}} {
		if n := stopsAt(t, shares, shares, 1e-4, looks(10_000_000), source(uint64(i))); n > 0 {
			t.Errorf("shares %v: alarm after %d even draws", shares, n)
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
		if err != nil || math.Abs(other-log) > 1e-9*math.Abs(log)+1e-6 {
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

func TestLogEAtItsEnds(t *testing.T) {
	t.Parallel()
	for _, counts := range [][]uint64{{5}, {0, 0, 0}} {
		if log, err := LogE(counts, nil); err != nil || log != 0 {
			t.Errorf("%v: ln E = %v, %v, want 0", counts, log, err)
		}
	}
	if _, err := LogE(nil, nil); err == nil {
		t.Error("no endpoints: no error")
	}
	for _, shares := range [][]float64{{1}, {0.5, 0.4}, {1.5, -0.5}, {math.NaN(), 1}, {math.Inf(1), 0}} {
		if log, err := LogE([]uint64{1, 2}, shares); err == nil {
			t.Errorf("shares %v: ln E = %v, want an error", shares, log)
		}
	}
}

// An endpoint without a share takes no part, unless it is drawn.
func TestLogEOfNoShare(t *testing.T) {
	t.Parallel()
	with, err := LogE([]uint64{30, 0, 10}, []float64{0.5, 0, 0.5})
	if err != nil {
		t.Fatal(err)
	}
	if without, err := LogE([]uint64{30, 10}, nil); err != nil || with != without {
		t.Errorf("ln E = %v, without the endpoint %v (%v)", with, without, err)
	}
	if log, err := LogE([]uint64{30, 1, 10}, []float64{0.5, 0, 0.5}); err != nil || !math.IsInf(log, 1) {
		t.Errorf("drawn without a share: ln E = %v, %v, want +Inf", log, err)
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
