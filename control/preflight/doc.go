// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package preflight says whether a node can run veridict, and what is in its way.
//
// [Run] is pure: it judges [Facts] that somebody else has gathered, all of them, also
// after a failure. A failure keeps veridict from serving; a warning is something that
// an operator should know or may have to mend. Every one of them comes with what to do.
package preflight
