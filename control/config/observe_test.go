// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/control/config"
)

func TestObserve(t *testing.T) {
	t.Parallel()
	standard := func(change func(*config.Observe)) config.Observe {
		o := defaults(nil).Observe
		change(&o)
		return o
	}
	tests := []struct {
		name, file string
		args       []string
		want       config.Observe
	}{
		{name: "off", args: []string{"--observe=off"}, want: standard(func(o *config.Observe) { o.Off = true })},
		{name: "required", args: []string{"--observe=require"}, want: standard(func(o *config.Observe) { o.Required = true })},
		{
			name: "a file", file: header + ownHeader + "observe: {mode: \"off\", pinPath: /bpf/a, maxSelections: 7, interval: 1s}\n",
			want: config.Observe{Off: true, PinPath: "/bpf/a", MaxSelections: 7, Interval: time.Second},
		},
		{
			name: "flags before a file", args: []string{"--observe=auto", "--bpf-pin-path=/bpf/b"},
			file: header + ownHeader + "observe: {mode: \"off\", pinPath: /bpf/a}\n",
			want: standard(func(o *config.Observe) { o.PinPath = "/bpf/b" }),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, _, err := load(t, test.file, test.args...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got.Observe); diff != "" {
				t.Errorf("observe (-want +got):\n%s", diff)
			}
		})
	}
}

func TestObserveMistakes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ fields, want string }{
		{"mode: maybe", `observe.mode: "maybe" is none of auto, off, require`},
		{"pinPath: bpf", `observe.pinPath: "bpf" is not an absolute path`},
		{"maxSelections: 0", "observe.maxSelections: 0 is not between 1 and 16777216"},
		{"interval: 1ms", "observe.interval: 1ms is less than 100ms"},
	} {
		_, _, err := load(t, header+ownHeader+"observe: {"+test.fields+"}\n")
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.fields, err, test.want)
		}
	}
}
