// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Command init is the first and only process of the virtual machine that
// test/vm/run.sh boots. It mounts what tests need, runs the test program and
// powers the machine off.
//
// What the test program prints goes to the second serial port as it is. The
// console, which is the first, gets the kernel's messages, init's own and as the
// last line VMEXIT:n, where n is the exit status of the test program, or 255 if
// it could not be run.
package main
