// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"strings"
	"testing"
)

func TestParseLayout(t *testing.T) {
	for _, layout := range layouts() {
		if got, err := ParseLayout(string(layout)); err != nil || got != layout {
			t.Errorf("layout %q: %q, %v", layout, got, err)
		}
	}
	for _, name := range []string{"", "MarkFree", "markfree ", "iptables"} {
		_, err := ParseLayout(name)
		if err == nil || !strings.Contains(err.Error(), "markfree") {
			t.Errorf("layout %q: %v, want an error that names the layouts", name, err)
		}
	}
}

func TestCheckVersion(t *testing.T) {
	cases := []struct {
		output string
		// want is part of the error; empty if there is none.
		want string
	}{
		{"nftables v1.0.6 (Lester Gooch #5)\n", ""},
		{"nftables v1.0.1 (Fearless Fosdick #3)\n", ""},
		{"nftables v1.1.7 (Commodore Bullmoose #8)\n", ""},
		{"nftables v1.1 (x)\n", ""},
		{"nftables v2.0.0 (x)\n", ""},
		{"nftables v10.0.0 (x)\n", ""},
		{"nftables v1.0.0 (Fearless Fosdick #2)\n", "1.0.0 is too old"},
		{"nftables v0.9.8 (E.D.S.)\n", "0.9.8 is too old"},
		{"", "install nftables 1.0.1"},
		{"busybox", "install nftables 1.0.1"},
	}
	for _, tc := range cases {
		err := checkVersion(tc.output)
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("version %q: %v", tc.output, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("version %q: %v, want an error with %q", tc.output, err, tc.want)
		}
	}
}
