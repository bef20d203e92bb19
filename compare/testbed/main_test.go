// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/compare/testbed/testmain"
)

// isolateVariable makes the test binary a program that isolates itself.
const isolateVariable = "VERIDICT_TEST_ISOLATE"

func TestMain(m *testing.M) {
	if os.Getenv(isolateVariable) != "" {
		os.Exit(isolateItself())
	}
	os.Exit(testmain.Run(m))
}

// shareVariable names the directory that the program shares with the host.
const shareVariable = "VERIDICT_TEST_SHARE"

// isolateItself prints the isolated process's network namespace and the files
// in its /run, makes a file in the shared directory, and ends with code 7.
func isolateItself() int {
	if !testbed.Isolated() {
		err := testbed.Isolate(context.Background())
		if exit, ok := errors.AsType[*testbed.ExitError](err); ok {
			return exit.ExitCode()
		}
		fmt.Println(err)
		return 1
	}
	var shared []string
	if dir := os.Getenv(shareVariable); dir != "" {
		shared = append(shared, dir)
	}
	if err := testbed.EnterIsolation(shared...); err != nil {
		fmt.Println(err)
		return 1
	}
	for _, dir := range shared {
		if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	name, err := os.Readlink("/proc/self/ns/net")
	files, dirErr := os.ReadDir("/run")
	fmt.Println(name, err, files, dirErr)
	return 7
}
