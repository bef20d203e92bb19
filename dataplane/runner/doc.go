// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package runner calls a function when there is work, but not too often: after
// a trigger with a minimum pause between calls, again with growing delays after
// an error, and at a time that the function asked for.
//
// Time comes from an injected [Clock], so that tests decide when it passes.
package runner
