// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"strings"
	"testing"

	"github.com/veridict/veridict/dataplane"
)

func TestRepeatsLookups(t *testing.T) {
	for release, want := range map[string]bool{
		"6.1.0-57-cloud-amd64":       false,
		"6.1.192":                    false,
		"6.12.47":                    false,
		"6.12.48+deb13-amd64":        true,
		"6.12.115+deb12-cloud-arm64": true,
		"6.16.9":                     false,
		"6.17.0-rc1":                 true,
		"6.17-rc1":                   true,
		"6.18.44-fc-v857":            true,
		"7.0.1":                      true,
		"5.15.0-130-generic":         false,
		"":                           false,
		"unknown":                    false,
	} {
		if got := repeatsLookups(release); got != want {
			t.Errorf("%q: %t, want %t", release, got, want)
		}
	}
}

// A second lookup would double what the kernel spends on a flipped verdict.
func TestVIPsAreLookedUpTwiceWhereTheKernelMissesSome(t *testing.T) {
	for release, want := range map[string]int{"6.1.192": 2, "6.18.44": 1} {
		options := Options{KernelRelease: release}.withDefaults()
		for _, f := range families() {
			r := options.ruleset(f, &dataplane.Settings{})
			for chain, set := range map[string]string{
				"services": "service-ips", "external-local": "local-ips",
				"nodeports": "service-nodeports", "nodeport-external-local": "local-nodeports",
			} {
				got := 0
				for _, rule := range r.chain(chain).rules {
					got += strings.Count(rule, " vmap @"+set)
				}
				if got != want {
					t.Errorf("%s, %s: %d lookups of %s, want %d", release, f.id, got, set, want)
				}
			}
		}
	}
}
