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
	Figures []figure `json:"figures"`
}

// figure is one value of both proxies; kube-proxy's is 0 where only veridict was
// measured.
type figure struct {
	Subject   string  `json:"subject"`
	Name      string  `json:"name"`
	Veridict  float64 `json:"veridict"`
	KubeProxy float64 `json:"kubeProxy,omitempty"`
	// Target is in words, empty for a figure that only informs.
	Target string `json:"target,omitempty"`
	Met    bool   `json:"met,omitempty"`
}

// add takes both proxies at one number of Services. Targets are those of the project.
func (r *report) add(size, endpoints int, v, k measured) {
	subject := fmt.Sprintf("%d Services with %d endpoints", size, endpoints)
	put := func(name string, v, k float64, target string, met bool) {
		r.Figures = append(r.Figures, figure{subject, name, v, k, target, met})
	}
	switch {
	case size >= large:
		put("start until all answer, ms", v.start, k.start, "15 times faster", v.start*15 <= k.start)
		put("memory, MiB", v.rss, k.rss, "at most 60 %", v.rss <= 0.6*k.rss)
	case size >= manyChanges:
		put("start until all answer, ms", v.start, k.start, "3 times faster", v.start*3 <= k.start)
		put("memory, MiB", v.rss, k.rss, "", false)
	default:
		put("start until all answer, ms", v.start, k.start, "", false)
		put("memory, MiB", v.rss, k.rss, "", false)
	}
	put("peak memory, MiB", v.peak, k.peak, "", false)
	put("write to traffic, median ms", v.change, k.change, "at most 20 ms", v.change <= 20)
	if size == manyChanges {
		put("CPU of a change, mean ms", v.cpu, k.cpu, "50 times less", v.cpu*50 <= k.cpu)
	} else {
		put("CPU of a change, mean ms", v.cpu, k.cpu, "", false)
	}
	put("CPU of a second without changes, ms", v.idle, k.idle, "", false)
	put("300 writes to traffic, ms", v.burst, k.burst, "at most 200 ms", v.burst <= 200)
}

func (r *report) write(w io.Writer, format string) error {
	if format == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	subject, missed := "", 0
	for _, f := range r.Figures {
		if f.Subject != subject {
			fmt.Fprintf(table, "\n%s\tveridict\tkube-proxy\tratio\t\t\n", f.Subject)
			subject = f.Subject
		}
		ratio, peer, verdict := "", "", ""
		if f.KubeProxy > 0 {
			peer, ratio = number(f.KubeProxy), number(f.KubeProxy/f.Veridict)
		}
		if f.Target != "" {
			verdict = "met"
			if !f.Met {
				verdict = "MISSED"
				missed++
			}
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\t%s\n", f.Name, number(f.Veridict), peer, ratio, f.Target, verdict)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d targets missed\n", missed)
	return err
}

// number writes a value with three significant digits or as a whole number.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
