// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package nfttest says what tables of knftables' fake do to packets, so that
// tests assert behaviour rather than the text of rules.
//
// A [Tracer] takes a packet through the base chains of one table, as the kernel
// would, and returns all that can become of it, for every bucket that a rule may
// draw. [Dump] writes a table as text that does not depend on its history.
//
// The package knows nothing of how rules are made; it reads them as nft does. It
// reads only the words that occur in the rules of veridict: any other is an
// error of [NewTracer], so that no rule is ever believed to do less than it does.
//
// Nothing here is safe for concurrent use with a change of the table.
package nfttest
