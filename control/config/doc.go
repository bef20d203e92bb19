// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package config makes one immutable [Config] from flags and from a
// KubeProxyConfiguration file, so that what configures kube-proxy configures
// veridict.
//
// Precedence is kube-proxy's: with --config the file decides and flags that it
// could contain are ignored, with a warning, except --hostname-override. The
// flags that only veridict has (--node-name, --layout, --localhost-nodeports)
// always count.
//
// The file is decoded strictly: an unknown or repeated field is an error that
// names the file and the path of the field. Fields that kube-proxy knows and
// veridict has no use for are accepted. A second document of kind
// VeridictConfiguration holds what kube-proxy does not know.
package config
