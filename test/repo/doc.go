// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package repo tests the repository itself: conventions that no linter knows,
// and documents that must not drift from what they describe. It has no code of
// its own and reads only files.
package repo
