// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package preflight

import "fmt"

// Status is how a check ended.
type Status string

// The ends of a check.
const (
	OK      Status = "ok"
	Warning Status = "warning"
	Failure Status = "failure"
	// Skipped is for what cannot be known or is not wanted.
	Skipped Status = "skipped"
)

// Result is that of one check.
type Result struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Detail is what was found.
	Detail string `json:"detail"`
	// Hint is what to do; empty if nothing is.
	Hint string `json:"hint,omitempty"`
}

// Report is what all checks say.
type Report struct {
	Checks   []Result `json:"checks"`
	Failures int      `json:"failures"`
	Warnings int      `json:"warnings"`
}

// Run makes all checks.
func Run(f *Facts) Report {
	var report Report
	for _, check := range []func(*Facts) Result{
		permissions, kernelVersion, nftablesUsable, rulesLoad, connectionTracking, forwarding, reversePath, bridges,
		observation, pins, kubeProxy, otherProxies, flushers, otherNAT, another, ports, nodePortRange, node, apiServer,
	} {
		result := check(f)
		switch result.Status {
		case Failure:
			report.Failures++
		case Warning:
			report.Warnings++
		}
		report.Checks = append(report.Checks, result)
	}
	return report
}

func ok(name, format string, args ...any) Result {
	return Result{Name: name, Status: OK, Detail: fmt.Sprintf(format, args...)}
}

func skipped(name, detail string) Result {
	return Result{Name: name, Status: Skipped, Detail: detail}
}

func warn(name, detail, hint string) Result { return Result{name, Warning, detail, hint} }

func fail(name, detail, hint string) Result { return Result{name, Failure, detail, hint} }
