// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package source reads Kubernetes objects from a directory of manifests and
// follows its changes.
//
// Files end in .yaml, .yml or .json; hidden files and what editors leave behind
// are ignored, subdirectories are not read. A file holds any number of
// documents, each a single object or a List. Objects are decoded one at a time
// and converted at once, so that memory is in proportion to what a proxy needs
// and not to the size of the files.
//
// Nothing that was served is lost by accident: a file with a syntax error keeps
// the objects that it had, and so does a directory that vanishes. What is wrong
// right now is always available as a list of [convert.Problem].
//
// All callbacks of a [Dir] come from the goroutine that called Run or Load.
package source
