// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package agent tests the whole agent: "veridict run" as its own process on a node made of
// network namespaces, real connections through it, and the commands and the API that say
// what it observed of them. What a single package promises is tested beside it or in
// test/kernel.
package agent
