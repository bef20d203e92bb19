// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRun(t *testing.T) {
	for _, tc := range []struct {
		name    string
		events  string
		want    string
		wantErr string
	}{
		{
			name: "passing tests are counted, their output is not shown",
			events: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"output","Package":"p","Output":"ok p 1.5s\n"}
{"Action":"pass","Package":"p","Elapsed":1.5}`,
			want: "ok    p (1.5s)\n1 passed, 0 failed, 0 skipped in 1 packages\n",
		},
		{
			name: "a failing test is shown without the lines that go test adds",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: wrong\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p","Elapsed":0.25}`,
			want: "    a_test.go:7: wrong\n--- FAIL: TestA (0.00s)\nFAIL  p (250ms)\n" +
				"0 passed, 1 failed, 0 skipped in 1 packages (1 failed)\n",
			wantErr: "tests failed",
		},
		{
			name: "a skipped test says why",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:9: no SCTP here\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p"}`,
			want: "    a_test.go:9: no SCTP here\nok    p (0s)\n1 passed, 0 failed, 1 skipped in 1 packages\n",
		},
		{
			name: "a package that does not build",
			events: `{"ImportPath":"p","Action":"build-output","Output":"p/a.go:3: undefined: x\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p"}`,
			want: "p/a.go:3: undefined: x\nFAIL\tp [build failed]\nFAIL  p (0s)\n" +
				"0 passed, 0 failed, 0 skipped in 1 packages (1 failed)\n",
			wantErr: "tests failed",
		},
		{
			name: "a test that a crash left without an end is shown",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"panic: boom\n"}
{"Action":"fail","Package":"p"}`,
			want:    "panic: boom\nFAIL  p (0s)\n0 passed, 0 failed, 0 skipped in 1 packages (1 failed)\n",
			wantErr: "tests failed",
		},
		{
			name:    "packages without tests only",
			events:  `{"Action":"skip","Package":"p"}`,
			want:    "0 passed, 0 failed, 0 skipped in 0 packages\n",
			wantErr: "no test ran",
		},
		{
			name:    "no events",
			want:    "0 passed, 0 failed, 0 skipped in 0 packages\n",
			wantErr: "no test ran",
		},
		{
			name:    "something else than events",
			events:  "go: cannot find main module",
			wantErr: "read events of go test: invalid character 'g' looking for beginning of value",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			err := run(strings.NewReader(tc.events), &out, "")
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
			var got string
			if err != nil {
				got = err.Error()
			}
			if got != tc.wantErr {
				t.Errorf("error %q, want %q", got, tc.wantErr)
			}
		})
	}
}

func TestRunWritesSummary(t *testing.T) {
	summary := filepath.Join(t.TempDir(), "summary")
	events := strings.NewReader(`{"Action":"pass","Package":"p","Test":"TestA"}`)
	if err := run(events, &strings.Builder{}, summary); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(summary)
	if err != nil {
		t.Fatal(err)
	}
	if want := "1 passed, 0 failed, 0 skipped in 0 packages\n"; string(got) != want {
		t.Errorf("summary %q, want %q", got, want)
	}
}
