// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import "testing"

// Each refused transaction costs a socket, and ServicePorts that stay refused are
// tried for ever.
func TestOwnershipForgetsOldSockets(t *testing.T) {
	var o ownership
	for port := range uint32(10 * kept) {
		o.addPort(port)
	}
	if len(o.ports) > kept {
		t.Errorf("%d sockets are remembered, want at most %d", len(o.ports), kept)
	}
	if !o.isPort(10*kept-1) || o.isPort(0) {
		t.Error("want the last socket to be remembered, and the first not")
	}
}
