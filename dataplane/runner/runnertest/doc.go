// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package runnertest has a [runner.Clock] whose time passes when a test says
// so. A [Clock] is safe for concurrent use, and no test has to sleep with it.
package runnertest
