// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package uniformity decides whether connections spread over endpoints as they
// should: a chi-square test for a run of fixed length, what such a run could
// have missed, and the correction for looking at many services at once.
//
// Everything here is a pure function of its arguments, safe for concurrent use.
// Errors say which argument is outside its range; there are no others. A run
// whose length depends on the counts seen so far must not use this test: its
// p-values hold only if the number of connections was fixed beforehand.
package uniformity
