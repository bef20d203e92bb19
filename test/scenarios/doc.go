// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package scenarios runs the scenarios of ../shared/flowcheck without privileges:
// objects go through the control plane and a real Syncer into a fake kernel, and the
// tracer takes each flow through the rules. scenarios.json is a copy, so that the
// tests stand alone; where the folder is there they say if the copy is out of date.
//
// flowcheck itself, with real packets, is what counts. What only connection tracking
// can show is left to it; the tests say how many flows that are.
package scenarios
