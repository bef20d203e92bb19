// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veridict/veridict/dataplane"
)

// letters returns an endpoint for each letter; "." is a row that is not there.
func letters(text string) slots {
	var list slots
	for _, c := range text {
		if c == '.' {
			list = append(list, netip.AddrPort{})
			continue
		}
		list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(c)}), 80))
	}
	return list
}

func (s slots) letters() string {
	var text strings.Builder
	for _, ep := range s {
		if !ep.IsValid() {
			text.WriteByte('.')
			continue
		}
		b := ep.Addr().As4()
		text.WriteByte(b[3])
	}
	return text.String()
}

func TestSlotsPlan(t *testing.T) {
	cases := []struct {
		name, have, want string
		// rows are those after the plan, surplus ones included.
		rows    string
		changes int
	}{
		{"nothing", "", "", "", 0},
		{"first", "", "abc", "abc", 3},
		{"same", "abc", "abc", "abc", 0},
		{"same in another order", "cab", "abc", "cab", 0},
		{"one more", "abc", "abcd", "abcd", 1},
		{"one more in front", "bcd", "abcd", "bcda", 1},
		{"the last goes", "abc", "ab", "abc", 0},
		{"the first goes", "abc", "bc", "cbc", 1},
		{"one in the middle goes", "abcd", "acd", "adcd", 1},
		{"all but the last go", "abcd", "d", "dbcd", 1},
		{"one is replaced", "abc", "abd", "abd", 1},
		{"all are replaced", "abc", "xyz", "xyz", 3},
		{"surplus rows are used", "abxy", "abc", "abcy", 1},
		{"surplus rows stay where they are right", "abxy", "abx", "abxy", 0},
		{"holes are filled", "a.c", "abc", "abc", 1},
		{"doubles are replaced", "aab", "abc", "acb", 1},
		{"none is left", "abc", "", "abc", 0},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			have := letters(tc.have)
			changes := have.plan(letters(tc.want))
			if len(changes) != tc.changes {
				t.Errorf("%d changes, want %d: %v", len(changes), tc.changes, changes)
			}
			if got := have.apply(changes).letters(); got != tc.rows {
				t.Errorf("rows %q, want %q", got, tc.rows)
			}
			if got := have.letters(); got != tc.have {
				t.Errorf("the plan changed the rows to %q", got)
			}
		})
	}
}

func TestSlotsSurplus(t *testing.T) {
	cases := []struct {
		have string
		n    int
		want string
	}{
		{"abcd", 2, "ab.."},
		{"abcd", 0, "...."},
		{"a..d", 1, "a..."},
		{"abcd", 4, "abcd"},
		{"", 0, ""},
	}
	for _, tc := range cases {
		have := letters(tc.have)
		changes := have.surplus(tc.n)
		if diff := cmp.Diff(tc.want, have.apply(changes).letters()); diff != "" {
			t.Errorf("surplus of %q from %d (-want +got):\n%s", tc.have, tc.n, diff)
		}
		for _, c := range changes {
			if !c.old.IsValid() || c.new.IsValid() {
				t.Errorf("surplus of %q from %d: %v removes no row", tc.have, tc.n, c)
			}
		}
	}
}

func TestSlotsWith(t *testing.T) {
	var s slots
	for _, found := range []struct {
		bucket uint32
		letter string
	}{{3, "d"}, {0, "a"}, {1, "b"}} {
		s = s.with(found.bucket, letters(found.letter)[0])
	}
	if got := s.letters(); got != "ab.d" {
		t.Errorf("rows %q, want %q", got, "ab.d")
	}
}

// I2 and I3: whatever the history, a plan leads the first buckets to each wanted
// endpoint once, changes one row for each endpoint that came or had to move, and
// leaves the others where they are.
func TestSlotsPlanProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		endpoint := rapid.Map(rapid.RuneFrom([]rune("abcdefghijklmnopqrst")), func(r rune) netip.AddrPort { return letters(string(r))[0] })
		wanted := rapid.SliceOfDistinct(endpoint, rapid.ID)
		var have slots
		for range rapid.IntRange(1, 6).Draw(rt, "steps") {
			want := wanted.Draw(rt, "want")
			checkPlan(rt, have, want)
			// A batch may end in the middle of the changes.
			changes := have.plan(want)
			have = have.apply(changes[:rapid.IntRange(0, len(changes)).Draw(rt, "applied")])
			have = have.apply(have.plan(want))
			if rapid.Bool().Draw(rt, "trim") {
				have = have[:len(want)]
			}
		}
	})
}

func checkPlan(rt *rapid.T, have slots, want []netip.AddrPort) {
	changes := have.plan(want)
	after := have.apply(changes)
	inUse := after[:len(want)]
	for _, ep := range want {
		if !slices.Contains(inUse, ep) {
			rt.Fatalf("%s: no bucket leads to %s of %s", have.letters(), ep, slots(want).letters())
		}
	}
	missing := 0
	for _, ep := range want {
		if !slices.Contains(have[:min(len(have), len(want))], ep) {
			missing++
		}
	}
	if len(changes) != missing {
		rt.Fatalf("%s to %s: %d changes for %d endpoints", have.letters(), slots(want).letters(), len(changes), missing)
	}
	for n := range changes {
		// The rows in use before stay rows after any part of the changes.
		part := have.apply(changes[:n])
		for i := range have {
			if have[i].IsValid() && !part[i].IsValid() {
				rt.Fatalf("%s to %s: bucket %d is empty after %d changes", have.letters(), slots(want).letters(), i, n)
			}
		}
	}
}

// I3 as the kernel sees it: one endpoint comes or goes, one row changes.
func TestSlotsOneEndpointIsOneChange(t *testing.T) {
	for _, n := range []int{2, 10, 1000} {
		var all slots
		for i := range n {
			all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80))
		}
		if got := len(all[:n-1].plan(all)); got != 1 {
			t.Errorf("%d endpoints and one more: %d changes, want 1", n-1, got)
		}
		without := slices.Delete(slices.Clone(all), n/2-1, n/2)
		if got := len(all.plan(without)); got != 1 {
			t.Errorf("%d endpoints and one less: %d changes, want 1", n, got)
		}
	}
}

// An endpoint with a weight costs as many changes as it has buckets, whatever the
// others have.
func TestSlotsWeightIsItsNumberOfChanges(t *testing.T) {
	endpoints := make([]dataplane.Endpoint, 100)
	for i := range endpoints {
		endpoints[i] = dataplane.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80), Weight: uint16(1 + i%5)}
	}
	have := slots(rowsOf(endpoints))
	for weight, want := range map[uint16]int{4: 1, 9: 6} {
		changed := slices.Clone(endpoints)
		changed[2].Weight = weight
		if got := len(have.plan(rowsOf(changed))); got != want {
			t.Errorf("weight 3 to %d: %d changes, want %d", weight, got, want)
		}
	}
	without := slices.Delete(slices.Clone(endpoints), 2, 3)
	if got := len(have.plan(rowsOf(without))); got > 3 {
		t.Errorf("an endpoint of weight 3 leaves: %d changes, want 3 at most", got)
	}
}
