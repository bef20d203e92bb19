// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package image runs the image that deploy/image makes with Debian's crun, as the
// DaemonSet of deploy/base asks for it: its capabilities, its arguments, its read-only
// file system, its mounts. They are taken from the manifests, so that neither can say
// something else. Only objects come from a directory instead of an API server.
package image
