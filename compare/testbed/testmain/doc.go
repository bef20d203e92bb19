// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package testmain runs the tests of a package in a network namespace of their
// own, so that root tests can never touch the host's.
//
// A package with root tests has
//
//	func TestMain(m *testing.M) { os.Exit(testmain.Run(m)) }
//
// and calls [NeedRoot] first in each of them. As root they always run; without
// root they are skipped, and say so.
package testmain
