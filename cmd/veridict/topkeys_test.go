// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDecodeKeys(t *testing.T) {
	for _, tc := range []struct {
		name     string
		input    string
		complete bool
		want     []topKey
		rest     string
	}{
		{"nothing", "", false, nil, ""},
		{"letters", "s/é", false, []topKey{'s', '/', 'é'}, ""},
		{"half of a letter", "s\xc3", false, []topKey{'s'}, "\xc3"},
		{"a letter that stays broken", "\xc3s", true, []topKey{'s'}, ""},
		{"controls", "\x03\r\n\x7f\b\x15\x01\x1a", false, []topKey{keyInterrupt, keyEnter, keyEnter, keyErase, keyErase, keyEraseAll}, ""},
		{"arrows", "\x1b[A\x1b[B\x1bOA\x1bOB", false, []topKey{keyUp, keyDown, keyUp, keyDown}, ""},
		{"pages", "\x1b[5~\x1b[6~", false, []topKey{keyPageUp, keyPageDown}, ""},
		{"ends", "\x1b[H\x1b[F\x1b[1~\x1b[4~\x1b[7~\x1b[8~", false, []topKey{keyHome, keyEnd, keyHome, keyEnd, keyHome, keyEnd}, ""},
		{"keys without a use", "\x1b[1;5Ax\x1b[24~y", false, []topKey{'x', 'y'}, ""},
		{"an escape that may go on", "q\x1b", false, []topKey{'q'}, "\x1b"},
		{"an escape that does not", "\x1b", true, []topKey{keyEscape}, ""},
		{"half of an arrow", "\x1b[", false, nil, "\x1b["},
		{"half of a page", "\x1b[5", false, nil, "\x1b[5"},
		{"two escapes", "\x1b\x1b", true, []topKey{keyEscape, keyEscape}, ""},
		{"an escape and a letter", "\x1bq", false, []topKey{keyEscape, 'q'}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			keys, rest := decodeKeys([]byte(tc.input), tc.complete)
			if diff := cmp.Diff(tc.want, keys); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
			if string(rest) != tc.rest {
				t.Errorf("rest %q, want %q", rest, tc.rest)
			}
		})
	}
}

// It makes no difference how keys are split into readings.
func FuzzDecodeKeys(f *testing.F) {
	f.Add([]byte("\x1b[5~é\x1b"), 2)
	f.Add([]byte("\x1b[5~é\x1b"), 5)
	f.Fuzz(func(t *testing.T, input []byte, split int) {
		split = min(max(split, 0), len(input))
		whole, rest := decodeKeys(slices.Clone(input), true)
		if len(rest) != 0 {
			t.Errorf("%q leaves %q though nothing follows", input, rest)
		}
		parts, rest := decodeKeys(slices.Clone(input[:split]), false)
		more, _ := decodeKeys(slices.Concat(rest, input[split:]), true)
		if diff := cmp.Diff(whole, append(parts, more...)); diff != "" {
			t.Errorf("%q split at %d (-whole +parts):\n%s", input, split, diff)
		}
	})
}
