// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"log/slog"
	"testing"
)

func TestDemoRefusesFlags(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"unknown output", []string{"-o", "xml"}, `--output must be "table" or "json", not "xml"`},
		{"no connections", []string{"--connections", "0"}, "--connections must be at least 1, not 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			command := newDemoCommand(new(slog.LevelVar))
			command.SetArgs(tc.args)
			command.SetOut(io.Discard)
			command.SetErr(io.Discard)
			if err := command.ExecuteContext(t.Context()); err == nil || err.Error() != tc.want {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
		})
	}
}
