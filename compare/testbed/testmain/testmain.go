// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testmain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/veridict/veridict/compare/testbed"
)

// Run runs the tests and returns the exit code. As root it runs the test binary
// again in namespaces of its own; failing to get them is a failed test.
func Run(m *testing.M) int {
	switch {
	case testbed.Isolated():
		if err := testbed.EnterIsolation(); err != nil {
			fmt.Fprintf(os.Stderr, "FAIL: root tests: %v\n", err)
			return 1
		}
		return m.Run()
	case os.Geteuid() != 0:
		fmt.Fprintln(os.Stderr, "SKIP root tests of this package: they need root")
		return m.Run()
	}
	err := testbed.Isolate(context.Background())
	if exit, ok := errors.AsType[*testbed.ExitError](err); ok {
		return exit.Code
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "FAIL: root tests: %v\n", err)
		return 1
	}
	return 0
}

// NeedRoot skips a test where it cannot run, and says why. It fails the test if
// the package's TestMain does not use [Run]: the test would change the network
// of the host.
func NeedRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root: it makes network namespaces")
	}
	if !testbed.Isolated() {
		tb.Fatal("this would run in the host's network namespace: TestMain must call testmain.Run")
	}
}
