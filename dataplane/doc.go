// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package dataplane holds the types that the control plane hands to a
// dataplane: what should be programmed ([State], [Update]), what was done
// ([Report]), and the interface between the two ([Syncer]).
//
// It knows neither Kubernetes nor the kernel: Kubernetes objects have become
// [ServicePort] and [Endpoint] values before they get here, and how a table is
// laid out is the business of the packages below.
//
// All types are plain values without locks. A value that was handed over must
// not be changed by the giver afterwards; receivers never change it.
package dataplane
