// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package examples holds the manifests of a small shop, which `veridict demo`
// serves and which `veridict run --manifests deploy/examples` can serve too:
// one file per Service, each showing something of its own.
package examples
