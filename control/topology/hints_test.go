// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/topology"
	"github.com/veridict/veridict/dataplane"
)

// parse reads endpoints like "a:ready,local,zone=x,node=me,weight=3 b:term". The name
// is the last byte of the address, a weight has one digit.
func parse(text string) []topology.Endpoint {
	var list []topology.Endpoint
	for word := range strings.FieldsSeq(text) {
		name, attributes, _ := strings.Cut(word, ":")
		e := topology.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, name[0]}), 80)}
		for attribute := range strings.SplitSeq(attributes, ",") {
			key, value, _ := strings.Cut(attribute, "=")
			switch key {
			case "ready":
				e.Ready, e.Serving = true, true
			case "term":
				e.Serving, e.Terminating = true, true
			case "local":
				e.Local = true
			case "weight":
				e.Weight = uint32(value[0] - '0')
			case "zone", "node":
				if e.Hints == nil {
					e.Hints = &convert.Hints{}
				}
				if key == "zone" {
					e.Hints.Zones = append(e.Hints.Zones, value)
				} else {
					e.Hints.Nodes = append(e.Hints.Nodes, value)
				}
			}
		}
		list = append(list, e)
	}
	return list
}

// names is the reverse of parse; a weight is written as repetition.
func names(list []dataplane.Endpoint) string {
	var out strings.Builder
	for _, e := range list {
		out.WriteString(strings.Repeat(string(rune(e.Addr.Addr().As4()[3])), e.Buckets()))
	}
	return out.String()
}

func TestLists(t *testing.T) {
	t.Parallel()
	here := topology.Node{Name: "me", Zone: "x"}
	tests := []struct {
		name, in       string
		node           topology.Node
		cluster, local string
	}{
		{"no endpoints", "", here, "", ""},
		{"no hints", "a:ready b:ready,local", here, "ab", "b"},
		{"zone hints", "a:ready,zone=x b:ready,zone=y,local c:ready,zone=x", here, "ac", "b"},
		{"several zones in a hint", "a:ready,zone=y,zone=x b:ready,zone=y c:ready,zone=y,zone=z", here, "a", ""},
		{"one Ready endpoint without hints", "a:ready,zone=x b:ready", here, "ab", ""},
		{"one unready endpoint without hints", "a:ready,zone=x b: c:ready,zone=y", here, "a", ""},
		{"no hint for this zone", "a:ready,zone=y b:ready,zone=z", here, "ab", ""},
		{"the only hint for this zone is not Ready", "a:ready,zone=y b:zone=x", here, "a", ""},
		{"this node has no zone", "a:ready,zone=x b:ready,zone=y", topology.Node{Name: "me"}, "ab", ""},
		{"a hint for no zone on a node of no zone", "a:ready,zone= b:ready,zone=y", topology.Node{Name: "me"}, "ab", ""},
		{"node hints", "a:ready,node=me b:ready,node=other", here, "a", ""},
		{"node hints go before zone hints", "a:ready,node=me,zone=y b:ready,node=other,zone=x", here, "a", ""},
		{"without a node hint for this one, zone hints count", "a:ready,node=o,zone=y b:ready,node=p,zone=x", here, "b", ""},
		{"a Ready endpoint without node hints: zone hints count", "a:ready,node=me,zone=y b:ready,zone=x", here, "b", ""},
		{"neither node nor zone of all", "a:ready,node=me b:ready,zone=x", here, "ab", ""},
		{"node hints for others only and no zone hints", "a:ready,node=o b:ready,node=p", here, "ab", ""},
		{"terminating endpoints do not obey hints", "a:term,zone=y b:term,zone=x", here, "ab", ""},
		{"a terminating endpoint is no fallback for hints", "a:ready,zone=y b:term,zone=x", here, "a", ""},
		{"Local does not obey hints", "a:ready,zone=y,local b:ready,zone=x", here, "b", "a"},
		{"Local falls back on its own", "a:ready b:term,local", here, "a", "b"},
		{"Cluster falls back and Local has none", "a:term b:term", here, "ab", ""},
		{"a local endpoint that is Ready leaves terminating ones out", "a:term,local b:ready,local", here, "b", "b"},
		{"none can be used", "a:local b:", here, "", ""},
		{"weights", "a:ready,weight=3 b:ready,local", here, "aaab", "b"},
		{"weights after hints", "a:ready,zone=x,weight=1 b:ready,zone=x,weight=2 c:ready,zone=y,weight=3", here, "abb", ""},
		{"the same weights", "a:ready,weight=5 b:ready,weight=5,local", here, "ab", "b"},
		{"weights among local endpoints", "a:ready,weight=1,local b:ready,weight=2,local c:ready,weight=3", here, "abbccc", "abb"},
		{"weights of terminating endpoints", "a:term,weight=2 b:term", here, "aab", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			in := parse(test.in)
			if diff := cmp.Diff(test.cluster, names(topology.Cluster(in, test.node))); diff != "" {
				t.Errorf("Cluster (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.local, names(topology.Local(in))); diff != "" {
				t.Errorf("Local (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServing(t *testing.T) {
	t.Parallel()
	in := parse("a:ready b:term c: d:local")
	want := []netip.AddrPort{in[0].Addr, in[1].Addr}
	if got := topology.Serving(in); !slices.Equal(got, want) {
		t.Errorf("Serving: %v, want %v", got, want)
	}
}

// TestAnyEndpoints says what the lists have in common, whatever the endpoints are.
func TestAnyEndpoints(t *testing.T) {
	t.Parallel()
	attribute := rapid.SampledFrom([]string{"ready", "ready", "term", "local", "zone=x", "zone=y", "node=me", "node=o", "weight=2"})
	rapid.Check(t, func(t *rapid.T) {
		var words []string
		for i := range rapid.IntRange(0, 6).Draw(t, "endpoints") {
			attributes := rapid.SliceOfN(attribute, 0, 5).Draw(t, "attributes")
			words = append(words, string(rune('a'+i))+":"+strings.Join(attributes, ","))
		}
		in := parse(strings.Join(words, " "))
		node := topology.Node{Name: "me", Zone: rapid.SampledFrom([]string{"", "x"}).Draw(t, "zone")}
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
