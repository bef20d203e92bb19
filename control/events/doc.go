// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package events tells operators through Kubernetes Events what they must act on:
// Services and EndpointSlices that are not served as written, and a node that cannot
// be programmed.
//
// Mistakes in objects are seen by every node. Their Events have a name made of the
// object and the message, so that all nodes of a cluster write one Event together and
// not one each; that it exists is success. Events of a node are its own. Each is
// written once while its cause lasts, and at most [Burst] in a minute: what is left
// out is in the log, where everything is.
//
// Writing happens in the background. It never delays programming, and a refusal is
// logged once.
package events
