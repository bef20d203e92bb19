// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"net/netip"
	"testing"

	"github.com/veridict/veridict/control/convert"
)

func TestParseAddr(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want string }{
		{"10.0.0.1", "10.0.0.1"}, {"010.000.08.1", "10.0.8.1"}, {"fd00::01", "fd00::1"}, {"::ffff:10.0.0.1", "10.0.0.1"},
		{"::ffff:010.0.0.01", "10.0.0.1"},
		{"", ""}, {"fe80::1%eth0", ""}, {"10.0.0", ""}, {"10.0.0.256", ""}, {"0x0a.0.0.1", ""}, {"10.0.0.1/8", ""}, {" 10.0.0.1", ""}, {"10..0.1", ""},
	}
	for _, test := range tests {
		got, err := convert.ParseAddr(test.in)
		if (err == nil) != (test.want != "") || err == nil && got.String() != test.want {
			t.Errorf("ParseAddr(%q) = %v, %v; want %q", test.in, got, err, test.want)
		}
	}
}

func TestParsePrefix(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want string }{
		{"10.0.0.0/8", "10.0.0.0/8"}, {"10.1.2.3/8", "10.0.0.0/8"}, {"010.0.0.0/08", "10.0.0.0/8"}, {"10.0.0.0/00", "0.0.0.0/0"}, {"010.0.0.0/8", "10.0.0.0/8"},
		{"::ffff:10.0.0.0/104", "10.0.0.0/8"}, {"::ffff:10.0.0.0/8", ""}, {"fd00::/64", "fd00::/64"}, {"10.0.0.0", ""}, {"10.0.0.0/33", ""},
	}
	for _, test := range tests {
		got, err := convert.ParsePrefix(test.in)
		if (err == nil) != (test.want != "") || err == nil && got.String() != test.want {
			t.Errorf("ParsePrefix(%q) = %v, %v; want %q", test.in, got, err, test.want)
		}
	}
}

// FuzzParseAddr says that what is accepted is a plain address that is read back
// as itself, and that whatever net/netip accepts is accepted.
func FuzzParseAddr(f *testing.F) {
	for _, seed := range []string{"10.0.0.1", "010.00.0.1", "::1", "::ffff:1.2.3.4", "::ffff:01.2.3.4", "fe80::1%x", "1.2.3.4.5", ".", "::."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		addr, err := convert.ParseAddr(text)
		plain, plainErr := netip.ParseAddr(text)
		if err != nil {
			if plainErr == nil && plain.Zone() == "" {
				t.Fatalf("%q is refused: %v", text, err)
			}
			return
		}
		if !addr.IsValid() || addr.Zone() != "" || addr.Is4In6() {
			t.Fatalf("%q gives %v", text, addr)
		}
		if plainErr == nil && plain.Unmap() != addr {
			t.Fatalf("%q gives %v, want %v", text, addr, plain)
		}
		if again, err := convert.ParseAddr(addr.String()); err != nil || again != addr {
			t.Fatalf("%v is read back as %v, %v", addr, again, err)
		}
	})
}
