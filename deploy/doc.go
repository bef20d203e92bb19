// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package deploy gives programs the files of its directory that they need to
// carry with them. examples/ holds the manifests of a small shop, which
// `veridict demo` serves, and `veridict run --manifests deploy/examples` too: one
// file per Service, each showing something of its own.
package deploy
