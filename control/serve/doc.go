// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package serve answers on the HTTP ports of the agent. [Run] keeps a listener
// alive; [Pages] are what kube-proxy serves beside its metrics, so that tools that
// ask for them go on working. What the pages say comes from elsewhere.
//
// Nobody is authenticated: the addresses are those of the node, and the pages
// change nothing.
package serve
