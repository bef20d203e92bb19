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

// A program that failed, nft for example, has an exit code of its own. That must
// neither become ours nor keep its error from being printed.
func TestExitCodes(t *testing.T) {
	failed := exec.Command("false").Run()
	for _, tc := range []struct {
		name  string
		err   error
		code  int
		quiet bool
	}{
		{"success", nil, 0, false},
		{"failure", errors.New("no"), 1, false},
		{"a program that failed", fmt.Errorf("open nft: %w", failed), 1, false},
		{"usage", usagef("unknown flag"), 2, false},
		{"differences", errDrift, 1, true},
		{"the process in our place", fmt.Errorf("demo: %w", &testbed.ExitError{Code: 130}), 130, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := exitCode(tc.err); got != tc.code {
				t.Errorf("exit code %d, want %d", got, tc.code)
			}
			if got := isQuiet(tc.err); got != tc.quiet {
				t.Errorf("quiet %t, want %t", got, tc.quiet)
			}
		})
	}
}
