// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/topology"
	"github.com/veridict/veridict/dataplane"
)

// endpoints reads one endpoint per word: flags, and hints for zones and nodes behind
// colons. Flags: r Ready, s serving, x terminating, l on this node.
func endpoints(text string) []topology.Endpoint {
	var list []topology.Endpoint
	for i, word := range strings.Fields(text) {
		parts := strings.Split(word+"::", ":")
		e := topology.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)}
		e.Ready, e.Serving = strings.Contains(parts[0], "r"), strings.ContainsAny(parts[0], "rs")
		e.Terminating, e.Local = strings.Contains(parts[0], "x"), strings.Contains(parts[0], "l")
		if parts[1] != "" || parts[2] != "" {
			e.Hints = &convert.Hints{}
			if parts[1] != "" {
				e.Hints.Zones = strings.Split(parts[1], ",")
			}
			if parts[2] != "" {
				e.Hints.Nodes = strings.Split(parts[2], ",")
			}
		}
		list = append(list, e)
	}
	return list
}

// indices says which endpoints were chosen.
func indices(list []dataplane.Endpoint) string {
	var words []string
	for _, e := range list {
		words = append(words, fmt.Sprint(e.Addr.Addr().As4()[3]))
	}
	return strings.Join(words, " ")
}

func TestHints(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, in, node, zone, want string }{
		{"no hints", "r r", "n", "a", "0 1"},
		{"zone", "r:a r:b r:a", "n", "a", "0 2"},
		{"several zones", "r:a,b r:b", "n", "a", "0"},
		{"one without a hint", "r:a r:b r", "n", "a", "0 1 2"},
		{"one without a hint that is not Ready", "r:a r:b s", "n", "a", "0"},
		{"no endpoint in the zone", "r:b r:c", "n", "a", "0 1"},
		{"the only one in the zone is not Ready", "s:a r:b", "n", "a", "1"},
		{"the node has no zone", "r:a r:b", "n", "", "0 1"},
		{"node", "r:a:m r:a:n r:a:n,m", "n", "a", "1 2"},
		{"no endpoint for the node, its zone is next", "r:a:m r:b:o", "n", "a", "0"},
		{"one without a hint for nodes", "r:a:n r:a r:b", "n", "a", "0 1"},
		{"terminating ones know no hints", "sx:a sx:b", "n", "a", "0 1"},
		{"a Ready one elsewhere keeps terminating ones out", "sx:a r:b", "n", "a", "1"},
	}
	for _, test := range tests {
		got := indices(topology.Cluster(endpoints(test.in), topology.Node{Name: test.node, Zone: test.zone}))
		if got != test.want {
			t.Errorf("%s: endpoints %q, want %q", test.name, got, test.want)
		}
	}
}

func TestLocal(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, in, want string }{
		{"none", "", ""},
		{"only elsewhere", "r r", ""},
		{"Ready ones of this node", "rl r rl", "0 2"},
		{"hints do not count", "rl:b rl:a", "0 1"},
		{"terminating ones if none is Ready here", "sxl r", "0"},
		{"not while one is Ready here", "sxl rl", "1"},
		{"serving is not enough", "sl", ""},
		{"terminating ones that do not serve", "xl", ""},
	}
	for _, test := range tests {
		if got := indices(topology.Local(endpoints(test.in))); got != test.want {
			t.Errorf("%s: endpoints %q, want %q", test.name, got, test.want)
		}
	}
}

func TestServing(t *testing.T) {
	t.Parallel()
	if got := topology.Serving(endpoints("r s sx x")); len(got) != 3 {
		t.Errorf("%d endpoints serve, want 3: %v", len(got), got)
	}
}

func TestWeightsOfChosen(t *testing.T) {
	t.Parallel()
	list := endpoints("r r s r")
	for i, w := range []uint32{6, 0, 50, 4} {
		list[i].Weight = w
	}
	var got []uint16
	for _, e := range topology.Cluster(list, topology.Node{}) {
		got = append(got, e.Weight)
	}
	if diff := cmp.Diff([]uint16{6, 1, 4}, got); diff != "" {
		t.Errorf("weights (-want +got):\n%s", diff)
	}
}

func TestBuckets(t *testing.T) {
	t.Parallel()
	tests := []struct {
		weights []uint32
		want    []uint16
	}{
		{nil, nil},
		{[]uint32{7}, nil},
		{[]uint32{5, 5, 5}, nil},
		{[]uint32{1, 2}, []uint16{1, 2}},
		{[]uint32{30, 10}, []uint16{3, 1}},
		{[]uint32{4095, 1}, []uint16{4095, 1}},
		{[]uint32{10000, 1}, []uint16{4095, 1}},
		{[]uint32{10000, 5001}, []uint16{2730, 1366}},
		{append(make([]uint32, 4096), 1), nil},
	}
	for _, test := range tests {
		if diff := cmp.Diff(test.want, topology.Buckets(test.weights)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", test.weights, diff)
		}
	}
}

// Buckets are in proportion: exactly where they fit, and otherwise to less than one
// bucket for each that has earned one.
func TestBucketsAreInProportion(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Uint32Range(1, 10000), 2, 60).Draw(t, "weights")
		buckets := topology.Buckets(weights)
		if buckets == nil {
			for _, w := range weights {
				if w != weights[0] {
					t.Fatalf("no buckets for weights that differ")
				}
			}
			return
		}
		var sum uint64
		total := 0
		for i, b := range buckets {
			sum += uint64(weights[i])
			total += int(b)
			if b == 0 {
				t.Fatalf("endpoint %d has no bucket", i)
			}
		}
		if total > topology.MaxWeightedBuckets {
			t.Fatalf("%d buckets", total)
		}
		exact := total < topology.MaxWeightedBuckets
		for i, b := range buckets {
			share := float64(weights[i]) * float64(total) / float64(sum)
			// Each of at most 60 that have one bucket too many takes one from the rest.
			if off := float64(b) - share; exact && off != 0 && (off > 1e-9 || off < -1e-9) || off > 1 || off < -60 {
				t.Fatalf("endpoint %d of weight %d has %d buckets, its share of %d is %.3f", i, weights[i], b, total, share)
			}
		}
	})
}
