// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures how fast and how large veridict is, and prints the
// figures beside their targets. It needs root, bin/veridict and nft, and works
// in network namespaces of its own.
//
// What is compared is measured in turns within one run, several times; the
// figures are medians. A missed target is marked as such; it is no error.
package main
