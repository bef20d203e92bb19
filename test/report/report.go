// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// event is one line of go test -json; see go doc test2json.
type event struct {
	Action  string
	Package string
	Test    string
	// ImportPath names the package in events of the build.
	ImportPath string
	Output     string
	// Elapsed is in seconds.
	Elapsed float64
}

// totals count what came to an end. A test with subtests counts besides them.
type totals struct {
	passed, failed, skipped  int
	packages, failedPackages int
}

// String names the packages that failed only where there are any: a package
// can fail without a failed test.
func (t totals) String() string {
	text := fmt.Sprintf("%d passed, %d failed, %d skipped in %d packages",
		t.passed, t.failed, t.skipped, t.packages)
	if t.failedPackages > 0 {
		text += fmt.Sprintf(" (%d failed)", t.failedPackages)
	}
	return text
}

// err returns why the run counts as failed, nil if it does not.
func (t totals) err() error {
	switch {
	case t.failed > 0 || t.failedPackages > 0:
		return errors.New("tests failed")
	case t.passed == 0:
		return errors.New("no test ran")
	default:
		return nil
	}
}

// testKey names a test; an empty test stands for the package itself.
type testKey struct{ pkg, test string }

// report prints events as they come and counts them.
type report struct {
	out    io.Writer
	totals totals
	// output holds what tests printed until it is known whether they passed.
	output map[testKey]*strings.Builder
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: make(map[testKey]*strings.Builder)}
}

// read reports the events of in up to its end.
func (r *report) read(in io.Reader) error {
	decoder := json.NewDecoder(in)
	for {
		var ev event
		err := decoder.Decode(&ev)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read events of go test: %w", err)
		}
		r.add(ev)
	}
}

func (r *report) add(ev event) {
	key := testKey{ev.Package, ev.Test}
	switch ev.Action {
	case "build-output":
		r.print(ev.Output)
	case "output":
		if r.output[key] == nil {
			r.output[key] = &strings.Builder{}
		}
		r.output[key].WriteString(ev.Output)
	case "pass", "fail", "skip":
		if ev.Test == "" {
			r.endPackage(ev)
		} else {
			r.endTest(ev)
		}
		delete(r.output, key)
	}
}

func (r *report) endTest(ev event) {
	switch ev.Action {
	case "pass":
		r.totals.passed++
	case "fail":
		r.totals.failed++
		r.print(r.outputOf(testKey{ev.Package, ev.Test}))
	case "skip":
		r.totals.skipped++
		r.print(r.outputOf(testKey{ev.Package, ev.Test}))
	}
}

func (r *report) endPackage(ev event) {
	elapsed := time.Duration(ev.Elapsed * float64(time.Second)).Round(10 * time.Millisecond)
	switch ev.Action {
	case "pass":
		r.totals.packages++
		r.print(fmt.Sprintf("ok    %s (%v)\n", ev.Package, elapsed))
	case "fail":
		r.totals.packages++
		r.totals.failedPackages++
		r.printRunning(ev.Package)
		r.print(r.outputOf(testKey{ev.Package, ev.Test}))
		r.print(fmt.Sprintf("FAIL  %s (%v)\n", ev.Package, elapsed))
	case "skip": // no test files
	}
}

// printRunning prints the output of the tests that a crash or a timeout of
// their package has left without an end.
func (r *report) printRunning(pkg string) {
	var running []string
	for key := range r.output {
		if key.pkg == pkg && key.test != "" {
			running = append(running, key.test)
		}
	}
	slices.Sort(running)
	for _, test := range running {
		key := testKey{pkg, test}
		r.print(r.outputOf(key))
		delete(r.output, key)
	}
}

// outputOf returns what the test or package has printed, without the lines
// that go test adds when a test begins or goes on.
func (r *report) outputOf(key testKey) string {
	output := r.output[key]
	if output == nil {
		return ""
	}
	var kept strings.Builder
	for line := range strings.Lines(output.String()) {
		if !strings.HasPrefix(strings.TrimSpace(line), "=== ") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// print writes to the terminal or pipe that the report is for. If that is gone
// there is nobody left to tell.
func (r *report) print(text string) { _, _ = io.WriteString(r.out, text) }
