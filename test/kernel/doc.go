// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package kernel holds the root tests of dataplane/nftables: the real nft
// program, the real kernel and real packets, in network namespaces of their own.
//
// It has no code but its tests. They run one after the other in one namespace,
// and each removes the tables it made. What the tests of dataplane/nftables show
// without a kernel is not shown again here.
package kernel
