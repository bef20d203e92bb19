// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package control is the control plane: a [Controller] takes objects from a
// [Source], keeps the desired state, and has a [dataplane.Syncer] program it.
//
// Nothing is programmed before the source is complete. The first call of the
// Syncer, and each one after an error or after somebody else has changed the
// dataplane, hands over the whole state; all others hand over what changed.
// An error is logged with its cause and retried with growing delays; no change
// is lost by it.
//
// What is wrong with the input, or was refused by the kernel, is logged once
// when it appears and is never in the way of other objects.
package control
