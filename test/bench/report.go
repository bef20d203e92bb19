// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// report is everything that was measured.
type report struct {
	Started time.Time `json:"started"`
	Rounds  int       `json:"rounds"`
	Figures []figure  `json:"figures"`
}

// figure is one measured value. A figure without a target only informs.
type figure struct {
	Subject string  `json:"subject"`
	Name    string  `json:"name"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	// Target is in words, Met whether it was reached.
	Target string `json:"target,omitempty"`
	Met    *bool  `json:"met,omitempty"`
}

func (r *report) note(subject, name string, value float64, unit string) {
	r.Figures = append(r.Figures, figure{Subject: subject, Name: name, Value: value, Unit: unit})
}

// atMost and atLeast add figures with a target.
func (r *report) atMost(subject, name string, value float64, unit string, limit float64) {
	r.target(subject, name, value, unit, fmt.Sprintf("at most %g", limit), value <= limit)
}

func (r *report) atLeast(subject, name string, value float64, unit string, limit float64) {
	r.target(subject, name, value, unit, fmt.Sprintf("at least %g", limit), value >= limit)
}

func (r *report) target(subject, name string, value float64, unit, target string, met bool) {
	r.Figures = append(r.Figures, figure{Subject: subject, Name: name, Value: value, Unit: unit, Target: target, Met: &met})
}

func (r *report) missed() int {
	n := 0
	for _, f := range r.Figures {
		if f.Met != nil && !*f.Met {
			n++
		}
	}
	return n
}

func (r *report) write(w io.Writer, format string) error {
	if format == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	subject := ""
	for _, f := range r.Figures {
		if f.Subject != subject {
			fmt.Fprintf(table, "\n%s\t\t\t\n", f.Subject)
			subject = f.Subject
		}
		verdict := ""
		if f.Met != nil {
			verdict = "met"
			if !*f.Met {
				verdict = "MISSED"
			}
		}
		fmt.Fprintf(table, "  %s\t%s %s\t%s\t%s\n", f.Name, number(f.Value), f.Unit, f.Target, verdict)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nmedians of %d rounds; %d targets missed\n", r.Rounds, r.missed())
	return err
}

// number writes a value with three significant digits or as a whole number.
func number(v float64) string {
	switch {
	case v == float64(int64(v)):
		return fmt.Sprintf("%d", int64(v))
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}

func median(values []float64) float64 { return percentile(values, 0.5) }

// percentile returns the smallest value that at least the share p of all values
// does not exceed.
func percentile(values []float64, p float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
