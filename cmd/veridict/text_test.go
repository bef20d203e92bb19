// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSeconds(t *testing.T) {
	for _, tc := range []struct {
		seconds float64
		want    string
	}{
		{0, "0"},
		{45e-9, "45 ns"},
		{999.4e-9, "999 ns"},
		{999.6e-9, "1 µs"},
		{1.234e-6, "1.23 µs"},
		{999.4e-6, "999 µs"},
		{999.7e-6, "1 ms"},
		{0.0123456, "12.3 ms"},
		{0.9999, "1 s"},
		{59.94, "59.9 s"},
		{12345, "12345 s"},
	} {
		if got := seconds(tc.seconds); got != tc.want {
			t.Errorf("%v is %q, want %q", tc.seconds, got, tc.want)
		}
	}
}

func TestEvidence(t *testing.T) {
	for _, tc := range []struct {
		exponent float64
		want     string
	}{
		{0, "1e0.0"},
		{-1.26, "1e-1.3"},
		{12.34, "1e12.3"},
		{999.94, "1e999.9"},
		{999.96, "1e1000"},
		{159848.2, "1e159848"},
	} {
		if got := evidence(tc.exponent * math.Ln10); got != tc.want {
			t.Errorf("10^%v is %q, want %q", tc.exponent, got, tc.want)
		}
	}
}

func TestAgo(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for _, tc := range []struct {
		then time.Time
		want string
	}{
		{time.Time{}, "never"},
		{now.Add(time.Minute), "0s"},
		{now.Add(-59 * time.Second), "59s"},
		{now.Add(-time.Minute), "1m"},
		{now.Add(-time.Hour), "1h"},
		{now.Add(-47 * time.Hour), "47h"},
		{now.Add(-48 * time.Hour), "2d"},
	} {
		if got := ago(now, tc.then); got != tc.want {
			t.Errorf("%v is %q ago, want %q", tc.then, got, tc.want)
		}
	}
}

func TestShorten(t *testing.T) {
	for _, tc := range []struct {
		text  string
		width int
		want  string
	}{
		{"shop/cart", 9, "shop/cart"},
		{"shop/cart", 8, "sho..art"},
		{"shop/cart", 7, "sho..rt"},
		{"shop/cart", 2, ".."},
		{"shop/cart", -3, ".."},
		{"", 0, ""},
	} {
		if got := shorten(tc.text, tc.width); got != tc.want {
			t.Errorf("%q in %d characters is %q, want %q", tc.text, tc.width, got, tc.want)
		}
	}
}

func TestWrap(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		width      int
		want       []string
	}{
		{"nothing", " \n", 10, nil},
		{"one line", "one line", 8, []string{"one line"}},
		{"two lines", "two lines", 8, []string{"two", "lines"}},
		{"a word that is too long", "a longerthanthat b", 8, []string{"a", "longerthanthat", "b"}},
		{"characters of many bytes", "±±± µµµ", 7, []string{"±±± µµµ"}},
	} {
		if diff := cmp.Diff(tc.want, wrap(tc.text, tc.width)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

func TestBar(t *testing.T) {
	for _, tc := range []struct {
		share   float64
		unicode bool
		want    string
	}{
		{0, true, ""},
		{0.5, true, "██"},
		{1, true, "████"},
		{2, true, "████"},
		{-1, true, ""},
		{0.28125, true, "█▏"},
		{0.5, false, "##"},
		{0.4, false, "##"},
	} {
		if got := bar(tc.share, 4, tc.unicode); got != tc.want {
			t.Errorf("a bar of %v is %q, want %q", tc.share, got, tc.want)
		}
	}
}

func TestHasUnicode(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  map[string]string
		want bool
	}{
		{"nothing", nil, false},
		{"LANG", map[string]string{"LANG": "en_US.UTF-8"}, true},
		{"the first that is set counts", map[string]string{"LC_ALL": "C", "LANG": "en_US.UTF-8"}, false},
		{"another spelling", map[string]string{"LC_CTYPE": "en_US.utf8"}, true},
	} {
		if got := hasUnicode(func(name string) string { return tc.env[name] }); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}
