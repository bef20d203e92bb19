// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/veridict/veridict/control/api"
	"github.com/veridict/veridict/control/observe"
)

// errUnwell ends status when something is wrong, which is its output.
var errUnwell = errors.New("something is wrong, see above")

func newStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say how the agent of this node is",
		Long: `Say how the agent of this node is: what is programmed, what observes the kernel,
and what is wrong. The exit status is 0 if all is well, and 1 if there are alarms,
changes that do not get through, or no agent.`,
		Args: noArguments,
	}
	o := addAgentFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client := api.NewClient(o.socket)
		defer client.Close()
		status, err := client.Status(cmd.Context())
		if err != nil {
			return err
		}
		now := time.Now()
		if err := o.print(cmd.OutOrStdout(), status, func(w io.Writer) { writeStatus(w, status, now) }); err != nil {
			return err
		}
		if len(status.Alarms) > 0 || !status.Dataplane.Healthy || status.Dataplane.LastError != "" {
			return errUnwell
		}
		return nil
	}
	return cmd
}

func writeStatus(w io.Writer, s *api.Status, now time.Time) {
	t := newTable(w, "PART", "STATE", "DETAILS")
	t.row("agent", "running", fmt.Sprintf("%s on %s, process %d, for %s",
		s.Agent.Version, s.Agent.Node, s.Agent.PID, ago(now, s.Agent.Started)))
	writeDataplane(t, &s.Dataplane, now)
	writeProbes(t, s)
	state := "none"
	if n := len(s.Alarms); n > 0 {
		state = fmt.Sprint(n)
	}
	t.row("alarms", state)
	t.flush()
	for _, a := range s.Alarms {
		fmt.Fprintf(w, "\n%s, for %s:\n", a.Kind, ago(now, a.Since))
		for _, line := range wrap(a.Text, columns-2) {
			fmt.Fprintln(w, "  "+line)
		}
	}
}

// stateHealthy is how the dataplane should be.
const stateHealthy = "healthy"

// dataplaneState is how it is, in a word.
func dataplaneState(d *api.Dataplane) string {
	switch {
	case !d.Synced:
		return "waiting"
	case !d.Healthy:
		return "unhealthy"
	case d.LastError != "":
		return "failing"
	}
	return stateHealthy
}

func writeDataplane(t *table, d *api.Dataplane, now time.Time) {
	t.row("dataplane", dataplaneState(d), fmt.Sprintf("%d ServicePorts, %d endpoints, %d elements (%s)",
		d.ServicePorts, d.Endpoints, d.Elements, d.Layout))
	t.row("", "", fmt.Sprintf("last sync %s ago in %s; %d syncs, %d failures",
		ago(now, d.LastSync), seconds(d.LastSyncSeconds), d.Syncs, d.Failures))
	if d.Problems > 0 {
		t.row("", "", fmt.Sprintf("%d things are not served as written: see the log", d.Problems))
	}
	if !d.Pending.IsZero() {
		t.row("", "", fmt.Sprintf("a change has waited for %s", ago(now, d.Pending)))
	}
	for _, line := range wrap(d.LastError, columns-24) {
		t.row("", "", line)
	}
}

func writeProbes(t *table, s *api.Status) {
	p := &s.Probes
	if p.Mode == observe.Off {
		part, state := "probes", "off"
		for _, line := range wrap(p.Reason, columns-24) {
			t.row(part, state, line)
			part, state = "", ""
		}
		return
	}
	state := string(p.Mode)
	if p.ReadError != "" {
		state = "failing"
	}
	t.row("probes", state, fmt.Sprintf("%d selections, %d foreign", p.Selections, p.Foreign))
	hooks := make(map[string][]string)
	var order []string
	for _, h := range p.Hooks {
		at := fmt.Sprintf("%d and %d", h.Before, h.After)
		if hooks[at] == nil {
			order = append(order, at)
		}
		hooks[at] = append(hooks[at], fmt.Sprintf("%s %s", h.Family, h.Hook))
	}
	for _, at := range order {
		where := strings.Join(hooks[at], ", ")
		if len(hooks[at]) == len(p.Hooks) {
			where = "all hooks"
		}
		t.row("", "", "priorities "+at+" at "+where)
	}
	if p.PinPath != "" {
		t.row("", "", "pinned at "+p.PinPath)
	} else {
		t.row("", "", "not pinned: counters end with the agent")
	}
	l := p.Losses
	t.row("", "", fmt.Sprintf("not counted %d, not timed %d, sent again %d, clashed %d",
		l.Full, l.Unmatched, l.Retransmitted, l.Clashed))
	for _, line := range wrap(p.ReadError, columns-24) {
		t.row("", "", line)
	}
	if q := s.Programming; q.Count > 0 {
		t.row("programming", fmt.Sprint(q.Count), fmt.Sprintf("from change to first selection: p50 %s, p99 %s",
			seconds(q.P50), seconds(q.P99)))
	}
}

// columns is the width that tables keep to.
const columns = 80

// wrap breaks a text at blanks.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
