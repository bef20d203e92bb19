// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	summary := flag.String("summary", "", "also write the totals to this `file`")
	flag.Parse()
	if err := run(os.Stdin, os.Stdout, *summary); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

// run reports the events of in on out. The error says why the run counts as
// failed.
func run(in io.Reader, out io.Writer, summary string) error {
	report := newReport(out)
	if err := report.read(bufio.NewReader(in)); err != nil {
		return err
	}
	totals := report.totals.String()
	if _, err := fmt.Fprintln(out, totals); err != nil {
		return fmt.Errorf("write totals: %w", err)
	}
	if summary != "" {
		if err := os.WriteFile(summary, []byte(totals+"\n"), 0o644); err != nil {
			return fmt.Errorf("write summary: %w", err)
		}
	}
	return report.totals.err()
}
