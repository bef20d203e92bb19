// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/veridict/veridict/bpf/uniformity"
)

const (
	// textWidth is the number of columns that the text form keeps within.
	textWidth = 78
	// barCells is the length of the bar of an endpoint that has exactly its
	// expected share; barLimit cuts longer ones.
	barCells, barLimit = 14, 19
	// significance is the chance, for all Services together, of calling an
	// even spread uneven.
	significance = 0.01
	// power is how sure the report is of the deviations that it excludes.
	power = 0.9
)

// WriteText writes the report for people, in at most 80 columns.
func (r *Report) WriteText(w io.Writer) error {
	var out bytes.Buffer
	r.writeServices(&out)
	r.writeScaling(&out)
	r.writeKernel(&out)
	r.writeCounts(&out)
	r.writeLatencies(&out)
	if err := r.writeVerdict(&out); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if _, err := out.WriteTo(w); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r *Report) writeServices(out *bytes.Buffer) {
	fmt.Fprintf(out, "%s connections from %d clients to %d pods behind %d ServicePorts, in %.1f s\n\n",
		thousands(r.Connections), r.Clients, r.Pods-r.Clients, len(r.Services), r.Elapsed.Seconds())
	fmt.Fprintf(out, "  %-26s%12s%8s%10s\n", "ENDPOINT", "CONNECTIONS", "SHARE", "EXPECTED")
	for _, service := range r.Services {
		title := fmt.Sprintf("%s  %s", service.title(), service.VIP)
		fmt.Fprintf(out, "%s%*s\n", title, textWidth-len(title), pValueText(service.Test))
		for _, endpoint := range service.Endpoints {
			fmt.Fprintf(out, "  %-26s%12s%8s%10s  %s\n", endpoint.Addr, thousands(endpoint.Connections),
				percent(float64(endpoint.Connections), service.Test.N), percent(endpoint.Expected, service.Test.N),
				bar(float64(endpoint.Connections), endpoint.Expected))
		}
	}
	for _, refusal := range r.Refusals {
		title := fmt.Sprintf("%s  %s", refusal.Service, refusal.VIP)
		fmt.Fprintf(out, "%s%*s\n", title, textWidth-len(title), "no endpoints: "+refusal.Outcome)
	}
}

func (r *Report) writeScaling(out *bytes.Buffer) {
	if len(r.Scaling) == 0 {
		return
	}
	fmt.Fprintf(out, "\nScaling %s while clients connect\n", r.Scaled)
	for _, step := range r.Scaling {
		fmt.Fprintf(out, "  %2d → %-2d endpoints%12s connections%8s failed    seen after %s\n",
			step.From, step.To, thousands(step.Connections), thousands(step.Failed), step.Followed.Round(time.Millisecond))
	}
}

func (r *Report) writeKernel(out *bytes.Buffer) {
	fmt.Fprintf(out, "\nIn the kernel\n")
	fmt.Fprintf(out, "  %d ServicePorts are served by %d chains, %d maps and %d elements.\n",
		r.Programmed.ServicePorts, r.Programmed.Chains, r.Programmed.Maps, r.Programmed.Elements)
	fmt.Fprintf(out, "  With 20,000 more of them, of the same endpoint counts, it would still be\n"+
		"  %d chains and %d maps; only elements are added, one lookup finds any.\n",
		r.Programmed.Chains, r.Programmed.Maps)
}

func (r *Report) writeVerdict(out *bytes.Buffer) error {
	fmt.Fprintf(out, "\nVerdict\n")
	fmt.Fprintf(out, "  %s of %s connections failed, %s of them opened while scaling.\n",
		thousands(r.Failed), thousands(r.Connections+r.scalingConnections()), thousands(r.scalingConnections()))
	for _, failure := range r.Failures {
		fmt.Fprintf(out, "    %6s  %s: %s\n", thousands(failure.Count), failure.Service, failure.Reason)
	}
	r.writeAgreement(out)
	tested := r.tested()
	if len(tested) == 0 {
		return nil
	}
	r.writeSpread(out, tested)
	if r.observed() {
		return nil // the table of counts says what could have been missed
	}
	return writeSensitivity(out, tested)
}

// tested returns the results in which there was something to test.
func (r *Report) tested() []ServiceResult {
	var tested []ServiceResult
	for _, service := range r.Services {
		if service.Test.DegreesOfFreedom > 0 && service.Test.N > 0 {
			tested = append(tested, service)
		}
	}
	return tested
}

// writeSpread judges the smallest p-value with regard to how many there are.
func (r *Report) writeSpread(out *bytes.Buffer, tested []ServiceResult) {
	var pvalues []float64
	smallest := 0
	for i, service := range tested {
		pvalues = append(pvalues, service.Test.PValue)
		if service.Test.PValue < pvalues[smallest] {
			smallest = i
		}
	}
	corrected := uniformity.Holm(pvalues)[smallest]
	verdict := "No sign of an uneven spread"
	if corrected < significance {
		verdict = "The spread is NOT even"
	}
	fmt.Fprintf(out, "  %s: the smallest of %d p-values is %.2g\n  (%s), or %.2g corrected for their number (Holm).\n",
		verdict, len(tested), pvalues[smallest], tested[smallest].title(), corrected)
}

// writeSensitivity says what the run could have missed, in the Service where
// that is most.
func writeSensitivity(out *bytes.Buffer, tested []ServiceResult) error {
	largest := 0.0
	for _, service := range tested {
		w, err := uniformity.DetectableEffect(service.Test.N, service.Test.DegreesOfFreedom, significance/float64(len(tested)), power)
		if err != nil {
			return err
		}
		largest = max(largest, uniformity.ShareDeviation(w, 1/float64(len(service.Endpoints))))
	}
	if largest >= 1 {
		fmt.Fprintf(out, "  So few connections show only the grossest unevenness; see --connections.\n")
		return nil
	}
	fmt.Fprintf(out, "  What this run could have missed: an endpoint that gets up to %.0f %% more or less\n"+
		"  than its share; beyond that it would have shown in %.0f %% of such runs.\n", 100*largest, 100*power)
	return nil
}

func (s *ServiceResult) title() string { return s.Namespace + "/" + s.Name + ":" + s.PortName }

func pValueText(test uniformity.Result) string {
	if test.DegreesOfFreedom == 0 {
		return "one endpoint"
	}
	if test.PValue < 0.001 {
		return "p < 0.001"
	}
	return fmt.Sprintf("p = %.3f", test.PValue)
}

func percent(part float64, whole int) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*part/float64(whole))
}

// bar draws value in eighths of a cell, [barCells] long where it is as expected.
func bar(value, expected float64) string {
	if expected <= 0 {
		return ""
	}
	eighths := min(int(8*barCells*value/expected+0.5), 8*barLimit)
	text := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		text += string([]rune("▏▎▍▌▋▊▉")[rest-1])
	}
	return text
}

// thousands writes n with a comma between groups of three digits. n must not be
// negative.
func thousands(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
