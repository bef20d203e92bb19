// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/control/observe"
)

func TestRateOf(t *testing.T) {
	for _, tc := range []struct {
		name           string
		last, previous uint64
		took           time.Duration
		want           topRate
	}{
		{"grew", 150, 100, 2 * time.Second, 25},
		{"did not", 100, 100, 2 * time.Second, 0},
		{"begun anew", 99, 100, 2 * time.Second, unknownRate},
		{"the same reading", 100, 100, 0, unknownRate},
		{"a clock that was set back", 150, 100, -time.Second, unknownRate},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := rateOf(tc.last, tc.previous, tc.took); got != tc.want {
				t.Errorf("got %v, want %v", float64(got), float64(tc.want))
			}
		})
	}
}

func TestTopRateString(t *testing.T) {
	for _, tc := range []struct {
		rate topRate
		want string
	}{
		{unknownRate, "-"},
		{0, "0"},
		{0.004, "<0.01"},
		{0.5, "0.5"},
		{1.0 / 3, "0.333"},
		{12.34, "12.3"},
		{999.4, "999"},
		{999.5, "1k"},
		{12_345, "12.3k"},
		{999_499, "999k"},
		{999_500, "1M"},
		{5e9, "5G"},
		{5e12, "5T"},
	} {
		if got := tc.rate.String(); got != tc.want {
			t.Errorf("%v is %s, want %s", float64(tc.rate), got, tc.want)
		}
	}
}

// A Service that has just come has no rate, and neither have those of another process.
func TestTopFrameRates(t *testing.T) {
	known := sampleService{name: "shop/cart", rate: 10}
	fresh := sampleService{name: "shop/fresh", rate: 10}
	rates := func(f *topFrame) map[string]topRate {
		got := map[string]topRate{"": f.selections}
		for i := range f.rows {
			got[f.rows[i].id] = f.rows[i].rate
		}
		return got
	}
	first, second := topSampleAt(0, known), topSampleAt(4, known, fresh)
	restarted := topSampleAt(4, known)
	restarted.status.Agent.Started = topStart()
	other := topSampleAt(4, known)
	other.services.Items[0].Family = 6
	for _, tc := range []struct {
		name           string
		last, previous *topSample
		want           map[string]topRate
	}{
		{"first", first, nil, map[string]topRate{"": unknownRate, "shop/cart": unknownRate}},
		{"one has come", second, first, map[string]topRate{"": 270, "shop/cart": 10, "shop/fresh": unknownRate}},
		{"one has gone", topSampleAt(8, known), second, map[string]topRate{"": unknownRate, "shop/cart": 10}},
		{"restarted", restarted, first, map[string]topRate{"": unknownRate, "shop/cart": unknownRate}},
		{"another family", other, first, map[string]topRate{"": 10, "shop/cart": unknownRate}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, rates(newTopFrame(tc.last, tc.previous))); diff != "" {
				t.Errorf("rates (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTopFirstPackets(t *testing.T) {
	histogram := func(counts ...uint64) (h observe.Histogram) {
		copy(h.Counts[:], counts)
		return h
	}
	for _, tc := range []struct {
		name                 string
		last, previous, want observe.Histogram
	}{
		{"since the last sample", histogram(5, 7), histogram(5, 3), histogram(0, 4)},
		{"none since", histogram(5, 7), histogram(5, 7), histogram()},
		{"begun anew", histogram(1, 7), histogram(5, 3), histogram(1, 7)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, grown(tc.last, tc.previous)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
