// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package api is what the running agent tells the commands: versioned JSON over HTTP on
// a unix socket that only its owner may open. [Server] and [Client] are its two ends,
// and the types with an apiVersion are the documents between them.
//
// Fields are added within a version, never changed or removed; readers ignore those
// that they do not know. Nothing can be changed through it.
//
// Both ends are safe for concurrent use. Errors name the socket.
package api
