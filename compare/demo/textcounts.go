// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// differencesShown bounds the list of counts that do not agree.
const differencesShown = 5

// writeCounts writes who has counted how many connections, and the verdicts about
// what the kernel has drawn.
func (r *Report) writeCounts(out *bytes.Buffer) {
	fmt.Fprintf(out, "\nConnections, as each has counted them\n")
	fmt.Fprintf(out, "  %-32s%8s%10s%8s  %-12s%6s\n", "", "CLIENTS", "ENDPOINTS", "KERNEL", "VERDICT", "EFFECT")
	all := r.ScalingCounts
	for i := range r.Services {
		service := &r.Services[i]
		all = all.plus(service.Counts)
		title := fmt.Sprintf("%-26s%-5s", service.title(), protocolAndFamily(service.VIP))
		r.writeCount(out, title, service.Counts, verdictText(service.Evenness), effectText(service.Evenness))
	}
	if len(r.Scaling) > 0 {
		r.writeCount(out, "all, while scaling", r.ScalingCounts, "", "")
	}
	r.writeCount(out, "sum", all, "", "")
	if !r.observed() {
		writeWrapped(out, "The kernel was not observed: "+r.Probes.Reason)
		return
	}
	fmt.Fprintf(out, "  KERNEL is how often NAT chose an endpoint, VERDICT how evenly. Had one of\n"+
		"  them got EFFECT more or less than its share, a chi-square test at 1 %% would\n"+
		"  have shown it in 80 %% of such runs; less may have been missed.\n")
}

func (r *Report) writeCount(out *bytes.Buffer, title string, counts Counts, verdict, effect string) {
	kernel := "-"
	if r.observed() {
		kernel = thousands(counts.Selected)
	}
	line := fmt.Sprintf("  %-32s%8s%10s%8s  %-12s%6s",
		title, thousands(counts.Opened), thousands(counts.Answered), kernel, verdict, effect)
	fmt.Fprintln(out, strings.TrimRight(line, " "))
}

// writeLatencies writes how long the kernel took for first packets.
func (r *Report) writeLatencies(out *bytes.Buffer) {
	if len(r.Latencies) == 0 {
		return
	}
	fmt.Fprintf(out, "\nFirst packet of a connection, through the kernel's NAT hook\n")
	fmt.Fprintf(out, "  %-8s%-14s%12s%10s%10s%10s\n", "FAMILY", "HOOK", "CONNECTIONS", "P50", "P90", "P99")
	for i := range r.Latencies {
		l := &r.Latencies[i]
		fmt.Fprintf(out, "  %-8s%-14s%12s%10s%10s%10s\n", l.Family, l.Hook, thousands(int(l.Total())),
			rounded(l.Quantile(0.5)), rounded(l.Quantile(0.9)), rounded(l.Quantile(0.99)))
	}
}

// writeAgreement sums up the counts.
func (r *Report) writeAgreement(out *bytes.Buffer) {
	switch {
	case len(r.Differences) > 0:
		fmt.Fprintf(out, "  The counts do NOT agree:\n")
		for _, difference := range r.Differences[:min(len(r.Differences), differencesShown)] {
			writeIndented(out, "    ", difference.String())
		}
		if more := len(r.Differences) - differencesShown; more > 0 {
			fmt.Fprintf(out, "    and %d more\n", more)
		}
	case r.observed():
		fmt.Fprintf(out, "  Clients, endpoints and the kernel have counted the same, Service by Service.\n")
	default:
		fmt.Fprintf(out, "  Clients and endpoints have counted the same, Service by Service.\n")
	}
	for _, alarm := range r.Alarms {
		writeWrapped(out, "Alarm: "+alarm.Text)
	}
}

// verdictText is at most 12 columns wide.
func verdictText(e *observe.Evenness) string {
	switch {
	case e == nil:
		return "-"
	case e.Untested == "one endpoint":
		return e.Untested
	default:
		return string(e.Verdict())
	}
}

func effectText(e *observe.Evenness) string {
	switch {
	case e == nil || e.Untested != "" || e.N == 0:
		return "-"
	case e.Detectable >= 1:
		return ">100 %"
	default:
		return fmt.Sprintf("%.0f %%", 100*e.Detectable)
	}
}

// protocolAndFamily is "tcp", or "tcp6" for IPv6.
func protocolAndFamily(vip dataplane.VIP) string {
	if vip.Addr.Is6() {
		return vip.Protocol.String() + "6"
	}
	return vip.Protocol.String()
}

// rounded drops what says nothing: quantiles are estimates.
func rounded(d time.Duration) string {
	switch {
	case d >= time.Millisecond:
		d = d.Round(10 * time.Microsecond)
	case d >= time.Microsecond:
		d = d.Round(10 * time.Nanosecond)
	}
	return d.String()
}

// writeWrapped writes a paragraph.
func writeWrapped(out *bytes.Buffer, text string) { writeIndented(out, "  ", text) }

// writeIndented writes a text in lines that keep within the width.
func writeIndented(out *bytes.Buffer, indent, text string) {
	line := indent
	for word := range strings.FieldsSeq(text) {
		if line != indent && len(line)+1+len(word) > textWidth {
			fmt.Fprintln(out, line)
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(out, line)
}
