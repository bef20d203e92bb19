// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Command report turns the events of go test -json, read from its standard
// input, into a short text: a line for each package, the output of what failed,
// the reason of each skipped test, and the totals.
//
// It exits with status 1 if a test or a package failed, if the events cannot be
// read, and if no test ran at all. With -summary FILE the totals are written to
// that file as well.
package main
