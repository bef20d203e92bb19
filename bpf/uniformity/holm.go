// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package uniformity

import (
	"cmp"
	"slices"
)

// Holm corrects p-values for being looked at together (Holm's step-down
// method): the chance that any of the returned values is below α is at most α
// if every null hypothesis is true, whatever the dependence between them. The
// result is in the order of pvalues, each in [0, 1].
func Holm(pvalues []float64) []float64 {
	order := make([]int, len(pvalues))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(pvalues[a], pvalues[b]) })
	adjusted := make([]float64, len(pvalues))
	largest := 0.0
	for rank, i := range order {
		largest = max(largest, min(1, pvalues[i]*float64(len(pvalues)-rank)))
		adjusted[i] = largest
	}
	return adjusted
}
