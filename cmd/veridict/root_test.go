// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"github.com/veridict/veridict/compare/testbed"
)

// TestExitCode: nothing ends with a code that says nothing, and silently.
func TestExitCode(t *testing.T) {
	t.Parallel()
	failed := exec.Command("sh", "-c", "exit 3").Run()
	tests := []struct {
		name  string
		err   error
		code  int
		quiet bool
	}{
		{"success", nil, 0, false},
		{"failure", errors.New("x"), 1, false},
		{"usage", fmt.Errorf("x: %w", usagef("y")), 2, false},
		{"drift", errDrift, 1, true},
		{"a process in our place", &testbed.ExitError{Code: 130}, 130, true},
		{"a helper that failed", fmt.Errorf("run nft: %w", failed), 1, false},
	}
	for _, test := range tests {
		if code, quiet := exitCode(test.err), isQuiet(test.err); code != test.code || quiet != test.quiet {
			t.Errorf("%s: code %d, quiet %t, want %d, %t", test.name, code, quiet, test.code, test.quiet)
		}
	}
}
