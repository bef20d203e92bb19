// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/topology"
	"github.com/veridict/veridict/dataplane"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	const r, s, x = 1, 2, 4 // Ready, Serving, Terminating
	tests := []struct {
		name string
		in   []int
		want []int // indices
	}{
		{"none", nil, nil},
		{"Ready only", []int{r | s, 0, r | s}, []int{0, 2}},
		{"terminating ones are left out while one is Ready", []int{s | x, r | s}, []int{1}},
		{"terminating ones that serve if none is Ready", []int{s | x, x, 0, s}, []int{0}},
		{"Ready counts although it terminates", []int{r | s | x, s | x}, []int{0}},
		{"none that can be used", []int{x, 0, s}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var in []topology.Endpoint
			for i, c := range test.in {
				in = append(in, topology.Endpoint{
					Addr:       netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(i)),
					Conditions: convert.Conditions{Ready: c&r != 0, Serving: c&s != 0, Terminating: c&x != 0, Local: i%2 == 0},
				})
			}
			var want []dataplane.Endpoint
			for _, i := range test.want {
				want = append(want, dataplane.Endpoint{Addr: in[i].Addr, Local: in[i].Local})
			}
			same := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
			if diff := cmp.Diff(want, topology.Cluster(in, topology.Node{}), same); diff != "" {
				t.Errorf("Cluster (-want +got):\n%s", diff)
			}
		})
	}
}
