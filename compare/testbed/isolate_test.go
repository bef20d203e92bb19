// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/veridict/veridict/compare/testbed/testmain"
)

// TestIsolate runs the test binary as a program that isolates itself, with the
// environment of one that is not yet isolated.
func TestIsolate(t *testing.T) {
	testmain.NeedRoot(t)
	program := exec.CommandContext(t.Context(), "/proc/self/exe")
	program.Env = append(os.Environ(), "VERIDICT_ISOLATED_FROM=", isolateVariable+"=1")
	output, err := program.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 7 {
		t.Fatalf("got error %v, want the exit code 7 of the isolated process; it wrote %q", err, output)
	}
	name, rest, _ := strings.Cut(strings.TrimSpace(string(output)), " ")
	if name == mustReadlink(t) {
		t.Errorf("the process ran in the namespace of the one that started it, %s", name)
	}
	if want := "<nil> [] <nil>"; rest != want {
		t.Errorf("error, files in /run, error: got %q, want %q", rest, want)
	}
}

// TestIsolatedIsNotFooledByTheVariable sets the variable without isolation.
func TestIsolatedIsNotFooledByTheVariable(t *testing.T) {
	testmain.NeedRoot(t)
	program := exec.CommandContext(t.Context(), "/proc/self/exe")
	program.Env = append(os.Environ(), "VERIDICT_ISOLATED_FROM="+mustReadlink(t), isolateVariable+"=1")
	output, err := program.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 7 {
		t.Fatalf("got error %v, want exit code 7; it wrote %q", err, output)
	}
	if name, _, _ := strings.Cut(string(output), " "); name == mustReadlink(t) {
		t.Errorf("the process took %s for a namespace of its own", name)
	}
}

// TestIsolateShares lets the program share a directory that does not exist yet.
func TestIsolateShares(t *testing.T) {
	testmain.NeedRoot(t)
	const dir = "/run/shared/directory"
	t.Cleanup(func() { _ = os.RemoveAll("/run/shared") })
	program := exec.CommandContext(t.Context(), "/proc/self/exe")
	program.Env = append(os.Environ(), "VERIDICT_ISOLATED_FROM=", isolateVariable+"=1", shareVariable+"="+dir)
	output, err := program.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 7 {
		t.Fatalf("got error %v, want exit code 7; it wrote %q", err, output)
	}
	if _, rest, _ := strings.Cut(strings.TrimSpace(string(output)), " "); rest != "<nil> [d shared/] <nil>" {
		t.Errorf("error, files in /run, error: got %q, want the shared directory alone", rest)
	}
	if _, err := os.Stat(dir + "/file"); err != nil {
		t.Errorf("what the program has made in the shared directory is not here: %v", err)
	}
}
