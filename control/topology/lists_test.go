// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/veridict/veridict/control/topology"
	"github.com/veridict/veridict/dataplane"
)

// TestAnyEndpoints says what the lists have in common, whatever the endpoints are.
func TestAnyEndpoints(t *testing.T) {
	t.Parallel()
	word := rapid.StringMatching("[rs]?x?l?(:[ab]?(:[mn])?)?")
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(word, 0, 6).Draw(t, "endpoints")
		in := endpoints(strings.Join(words, " "))
		node := topology.Node{Name: "n", Zone: rapid.SampledFrom([]string{"", "a"}).Draw(t, "zone")}
		cluster, local := topology.Cluster(in, node), topology.Local(in)
		usable := func(e topology.Endpoint) bool { return e.Ready || e.Serving && e.Terminating }
		if (len(cluster) == 0) != !slices.ContainsFunc(in, usable) {
			t.Fatalf("Cluster of %v: %v", words, cluster)
		}
		if (len(local) == 0) != !slices.ContainsFunc(in, func(e topology.Endpoint) bool { return e.Local && usable(e) }) {
			t.Fatalf("Local of %v: %v", words, local)
		}
		serving := topology.Serving(in)
		for _, e := range slices.Concat(cluster, local) {
			if !slices.Contains(serving, e.Addr) {
				t.Fatalf("%s of %v is in use and does not serve", e.Addr, words)
			}
		}
		if slices.ContainsFunc(local, func(e dataplane.Endpoint) bool { return !e.Local }) {
			t.Fatalf("Local of %v: %v", words, local)
		}
	})
}
