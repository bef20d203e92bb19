// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"testing/synctest"
)

// Each command line is run against an agent, at the time at which bubbles begin.
func TestAgentCommands(t *testing.T) {
	t.Setenv("LC_ALL", "C.UTF-8")
	agents := map[string]string{
		"well": wellAgent().serve(t), "unwell": unwellAgent().serve(t), "blind": blindAgent().serve(t),
	}
	for _, tc := range []struct {
		golden, agent, line string
		code                int
	}{
		{"status/well", "well", "status", 0},
		{"status/well-wide", "well", "status -o wide", 0},
		{"status/well-json", "well", "status -o json", 0},
		{"status/well-yaml", "well", "status -o yaml", 0},
		{"status/unwell", "unwell", "status", 1},
		{"status/unwell-wide", "unwell", "status -o wide", 1},
		{"status/unwell-json", "unwell", "status -o json", 1},
		{"status/blind", "blind", "status", 0},

		{"services/all", "well", "services", 0},
		{"services/all", "well", "services -o table --sort name", 0},
		{"services/all-wide", "well", "services -o wide", 0},
		{"services/all-json", "well", "services -o json", 0},
		{"services/all-yaml", "well", "services -o yaml", 0},
		{"services/by-selections", "well", "services --sort selections --limit 2", 0},
		{"services/by-evidence", "well", "services --sort evidence --limit 3 -o wide", 0},
		{"services/namespace", "well", "svc -n tools", 0},
		{"services/none", "blind", "services", 0},

		{"buckets/even", "well", "buckets shop/cart:http", 0},
		{"buckets/even-wide", "well", "buckets shop/cart:http -o wide", 0},
		{"buckets/even-json", "well", "buckets shop/cart:http -o json", 0},
		{"buckets/even-yaml", "well", "buckets shop/cart:http -o yaml", 0},
		{"buckets/ports", "well", "buckets shop/cart", 0},
		{"buckets/uneven", "well", "buckets catalog-of-all-that-there-is", 0},
		{"buckets/uneven-wide", "well", "buckets catalog-of-all-that-there-is -o wide", 0},
		{"buckets/few", "well", "buckets tools/cart", 0},
		{"buckets/source-hash", "well", "buckets hash", 0},
		{"buckets/empty", "well", "buckets waits", 0},

		{"latency/all", "well", "latency", 0},
		{"latency/all-wide", "well", "latency -o wide", 0},
		{"latency/all-json", "well", "latency -o json", 0},
		{"latency/all-yaml", "well", "latency -o yaml", 0},
		{"latency/none", "blind", "latency", 0},
	} {
		t.Run(tc.agent+" "+tc.line, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				code, stdout, stderr := run(t.Context(), append(strings.Fields(tc.line), "--socket", agents[tc.agent])...)
				if code != tc.code || stderr != "" {
					t.Errorf("exit code %d, want %d; stderr %q", code, tc.code, stderr)
				}
				compareGolden(t, tc.golden+".txt", stdout)
				if !strings.Contains(tc.line, "-o wide") && !strings.Contains(tc.line, "-o json") && !strings.Contains(tc.line, "-o yaml") {
					checkWidth(t, stdout)
				}
			})
		})
	}
}

// Where the locale has no Unicode, bars are made of what is left.
func TestAgentCommandsWithoutUnicode(t *testing.T) {
	t.Setenv("LC_ALL", "C")
	path := wellAgent().serve(t)
	for _, line := range []string{"latency", "buckets shop/cart:http"} {
		_, stdout, _ := run(t.Context(), append(strings.Fields(line), "--socket", path)...)
		if !strings.Contains(stdout, "####") || strings.ContainsAny(stdout, "█▏▎▍▌▋▊▉") {
			t.Errorf("veridict %s has no bars of #:\n%s", line, stdout)
		}
	}
}

func TestAgentCommandErrors(t *testing.T) {
	path := wellAgent().serve(t)
	for _, tc := range []struct {
		line string
		code int
		want string
	}{
		{"buckets shop/missing", 1, "ask the agent at SOCKET: there is no Service shop/missing"},
		{"buckets missing", 1, "there is no Service missing: see veridict services"},
		{"buckets cart", 2, "cart is in several namespaces, name one: shop, tools"},
		{"buckets shop/cart:dns", 1, `Service shop/cart has no port "dns", but "http", "metrics"`},
		{"buckets tools/cart:dns", 1, `Service tools/cart has only a port without a name`},
		{"buckets", 2, "want one SERVICE, see veridict services"},
		{"buckets a b", 2, "want one SERVICE, see veridict services"},
		{"services --sort size", 2, `--sort "size" is not name, selections or evidence`},
		{"services --limit -1", 2, "--limit -1 is less than 0"},
		{"services -o xml", 2, `invalid argument "xml" for "-o, --output" flag: want one of [table wide json yaml]`},
		{"latency extra", 2, `unexpected argument "extra"`},
		{"top a b", 2, `want at most one SERVICE, not ["a" "b"]`},
		{"top -d 1ms", 2, "--delay 1ms is less than 100ms"},
		{"top -n -1", 2, "--iterations -1 is less than 0"},
	} {
		t.Run(tc.line, func(t *testing.T) {
			code, stdout, stderr := run(t.Context(), append(strings.Fields(tc.line), "--socket", path)...)
			want := "veridict: " + strings.ReplaceAll(tc.want, "SOCKET", path) + "\n"
			if code != tc.code || stderr != want || stdout != "" {
				t.Errorf("exit code %d, stderr %q, stdout %q; want %d, %q and nothing", code, stderr, stdout, tc.code, want)
			}
		})
	}
}

func TestAgentCommandHelp(t *testing.T) {
	for _, command := range []string{"status", "services", "buckets", "latency", "top"} {
		_, stdout, _ := run(t.Context(), "help", command)
		text, _, _ := strings.Cut(stdout, "\nUsage:")
		checkWidth(t, text)
	}
}

func TestCompletion(t *testing.T) {
	path := wellAgent().serve(t)
	for _, tc := range []struct {
		line string
		want []string
	}{
		{"buckets --socket SOCKET ,", []string{
			"a-namespace-with-a-long-name/catalog-of-all-that-there-is", "shop/cart", "tools/cart", "tools/hash", "tools/waits",
		}},
		{"top --socket SOCKET tools/", []string{"tools/cart", "tools/hash", "tools/waits"}},
		{"buckets --socket SOCKET shop/cart ,", nil},
		{"buckets --socket /nowhere/s ,", nil},
		{"services --socket SOCKET --namespace ,", []string{"a-namespace-with-a-long-name", "shop", "tools"}},
		{"services --socket SOCKET -n to", []string{"tools"}},
		{"services --sort ,", []string{"name", "selections", "evidence"}},
		{"status -o ,", []string{"table", "wide", "json", "yaml"}},
		{"services -o ,", []string{"table", "wide", "json", "yaml"}},
		{"buckets -o ,", []string{"table", "wide", "json", "yaml"}},
		{"latency --output ,", []string{"table", "wide", "json", "yaml"}},
		{"run -o ,", []string{"json"}},
	} {
		t.Run(tc.line, func(t *testing.T) {
			args := []string{"__complete"}
			for arg := range strings.FieldsSeq(tc.line) {
				args = append(args, strings.ReplaceAll(strings.ReplaceAll(arg, "SOCKET", path), ",", ""))
			}
			code, stdout, _ := run(t.Context(), args...)
			// The last line is for the shell: nothing else fits, no files either.
			want := strings.Join(append(tc.want, ":4", ""), "\n")
			if code != 0 || stdout != want {
				t.Errorf("exit code %d, offers\n%swant\n%s", code, stdout, want)
			}
		})
	}
}
