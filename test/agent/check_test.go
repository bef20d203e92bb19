// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/veridict/veridict/control/preflight"
)

// check runs veridict check and returns its output and exit status.
func check(t *testing.T, args ...string) (string, int) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path, append([]string{"check", "--node-name", "node"}, args...)...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out), 0
}

func results(t *testing.T, text string) map[string]preflight.Result {
	t.Helper()
	var report preflight.Report
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	byName := map[string]preflight.Result{}
	for _, result := range report.Checks {
		byName[result.Name] = result
	}
	return byName
}

// TestCheck looks at a node without anything in the way, then puts things there. It must
// change nothing.
func TestCheck(t *testing.T) {
	newNode(t)
	before := nftList(t)
	text, code := check(t)
	if code != 0 {
		t.Errorf("exit status %d:\n%s", code, text)
	}
	for line := range strings.Lines(text) {
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 80 {
			t.Errorf("wider than 80 columns: %s", line)
		}
	}
	text, _ = check(t, "-o", "json")
	got := results(t, text)
	for _, name := range []string{"permissions", "kernel", "nftables", "rules", "conntrack", "observation", "kube-proxy", "veridict", "ports"} {
		if got[name].Status != preflight.OK {
			t.Errorf("%+v", got[name])
		}
	}
	if after := nftList(t); after != before {
		t.Errorf("check has changed the rules:\n%s", after)
	}

	nft(t, "add table ip kube-proxy")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:10249")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	text, code = check(t, "-o", "json")
	got = results(t, text)
	if r := got["kube-proxy"]; r.Status != preflight.Warning || !strings.Contains(r.Detail, "table ip kube-proxy") {
		t.Errorf("%+v", r)
	}
	if r := got["ports"]; r.Status != preflight.Warning || !strings.Contains(r.Detail, "127.0.0.1:10249") {
		t.Errorf("%+v", r)
	}
	if code != 0 {
		t.Errorf("exit status %d with warnings only", code)
	}
	if _, code := check(t, "--strict"); code != 1 {
		t.Errorf("exit status %d with --strict, want 1", code)
	}
	text, code = check(t, "--master", "http://127.0.0.1:1", "-o", "json")
	if r := results(t, text)["API server"]; code != 1 || r.Status != preflight.Failure || !strings.Contains(r.Detail, "refused") {
		t.Errorf("exit status %d, %+v", code, r)
	}
}

func nftList(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
