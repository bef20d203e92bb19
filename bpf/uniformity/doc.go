// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package uniformity decides whether connections spread over endpoints as they
// should.
//
// There are two situations. A run whose length was fixed beforehand, in a test or a
// demo, is judged once: [ChiSquare], [GTest] or, for few connections, [Simulated]. An
// agent looks again and again at counts that grow, and would raise a false alarm
// sooner or later with any of these: it uses [LogE], which may be looked at as often
// as one likes. [Holm] and [EBH] correct the two for looking at many services at
// once. [DetectableEffect] and [Delay] say what could have been seen at all, without
// which "even" means nothing.
//
// Evidence multiplies: the logarithms of e-values of independent counts, of epochs
// with other endpoints or of other nodes, may be added. A change of endpoints or weights
// begins an epoch with counts of zero.
//
// Only counts are looked at, because the kernel keeps no more: an order within them,
// such as strict turns or clients that all start at the same endpoint, is not noticed,
// and no test of independence is possible.
//
// Everything here is a pure function of its arguments, safe for concurrent use but
// for the source of random numbers. Errors say which argument is outside its range;
// there are no others.
package uniformity
