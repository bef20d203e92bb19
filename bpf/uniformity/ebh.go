// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package uniformity

import (
	"cmp"
	"math"
	"slices"
)

// EBH says which of many e-values, given as logarithms, are to be believed when they
// are looked at together: of those that it picks, at most a share alpha is false on
// average, whatever the dependence between them (e-BH, Wang and Ramdas, JRSS-B 2022).
// Of m services, one alone needs evidence of m/alpha, and each of two half of that.
//
// The result is in the order of logE. alpha must be within (0, 1). Which services are
// given must not depend on their counts, and the evidence must be that of now: the
// highest so far is not an e-value.
func EBH(logE []float64, alpha float64) []bool {
	order := make([]int, len(logE))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(logE[b], logE[a]) })
	picked := 0
	for rank, i := range order {
		if logE[i] >= math.Log(float64(len(logE))/(float64(rank+1)*alpha)) {
			picked = rank + 1
		}
	}
	out := make([]bool, len(logE))
	for _, i := range order[:picked] {
		out[i] = true
	}
	return out
}
