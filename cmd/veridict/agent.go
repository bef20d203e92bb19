// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/veridict/veridict/control/api"
)

// agentOptions are the flags of all commands that ask a running agent.
type agentOptions struct {
	socket string
	output *outputFormat
}

func addAgentFlags(cmd *cobra.Command) *agentOptions {
	o := &agentOptions{output: addOutputFlag(cmd, "table", "wide", "json", "yaml")}
	addSocketFlag(cmd, &o.socket)
	return o
}

func addSocketFlag(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "socket", api.DefaultPath, "`path` of the agent's socket")
}

// wide says whether tables may be wider than a terminal.
func (o *agentOptions) wide() bool { return o.output.value == "wide" }

// print writes a document, as a table if nothing else is wanted.
func (o *agentOptions) print(w io.Writer, document any, table func(io.Writer)) error {
	switch o.output.value {
	case "json":
		return writeJSON(w, document)
	case "yaml":
		text, err := yaml.Marshal(document)
		if err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		_, err = w.Write(text)
		return err
	}
	table(w)
	return nil
}

// table writes rows in columns that are as wide as they have to be.
type table struct {
	out  io.Writer
	text *bytes.Buffer
	w    *tabwriter.Writer
}

// newTable prints nothing before flush.
func newTable(w io.Writer, header ...string) *table {
	text := new(bytes.Buffer)
	t := &table{out: w, text: text, w: tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)}
	t.row(header...)
	return t
}

func (t *table) row(cells ...string) { fmt.Fprintln(t.w, strings.Join(cells, "\t")) }

// flush writes the table, without blanks at the ends of lines.
func (t *table) flush() {
	// A buffer takes everything.
	_ = t.w.Flush()
	for line := range strings.Lines(t.text.String()) {
		fmt.Fprintln(t.out, strings.TrimRight(line, " \n"))
	}
}

// ago is how long something is past, in a few characters.
func ago(now, then time.Time) string {
	if then.IsZero() {
		return "never"
	}
	d := max(now.Sub(then), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// seconds prints a duration with three digits.
func seconds(s float64) string {
	if s == 0 {
		return "0"
	}
	if s < 999.5e-9 {
		return fmt.Sprintf("%.0f ns", s*1e9)
	}
	units := []string{"µs", "ms", "s"}
	unit := 0
	s *= 1e6
	// 999.5 would be printed as 1e+03.
	for s >= 999.5 && unit < len(units)-1 {
		s /= 1000
		unit++
	}
	if s >= 999.5 {
		return fmt.Sprintf("%.0f s", s)
	}
	return fmt.Sprintf("%.3g %s", s, units[unit])
}

// bar draws a share of a width, to an eighth of a character where the terminal can.
func bar(share float64, width int, unicode bool) string {
	share = min(max(share, 0), 1)
	if !unicode {
		return strings.Repeat("#", int(share*float64(width)+0.5))
	}
	eighths := int(share*float64(width)*8 + 0.5)
	out := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		out += string([]rune(" ▏▎▍▌▋▊▉")[rest])
	}
	return out
}

// hasUnicode says whether the locale's characters are those of Unicode.
func hasUnicode(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := strings.ToUpper(getenv(name)); value != "" {
			return strings.Contains(value, "UTF-8") || strings.Contains(value, "UTF8")
		}
	}
	return false
}

// unicodeOutput asks the environment of the process.
func unicodeOutput() bool { return hasUnicode(os.Getenv) }
