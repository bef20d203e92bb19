// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
	"unicode/utf8"

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
and what is wrong. The exit status is 0 if all is well, and 1 if there are
alarms, changes that do not get through, or no agent.`,
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
		if err := o.print(cmd.OutOrStdout(), status, func(w io.Writer) { writeStatus(w, status, now, o.wide()) }); err != nil {
			return err
		}
		if len(status.Alarms) > 0 || !status.Dataplane.Healthy || status.Dataplane.LastError != "" {
			return errUnwell
		}
		return nil
	}
	return cmd
}

func writeStatus(w io.Writer, s *api.Status, now time.Time, wide bool) {
	t := &statusTable{table: newTable(w, "PART", "STATE", "DETAILS"), width: detailsWidth}
	if wide {
		t.width = math.MaxInt
	}
	t.part("agent", "running", "%s on %s, process %d, for %s",
		s.Agent.Version, s.Agent.Node, s.Agent.PID, ago(now, s.Agent.Started))
	t.dataplane(&s.Dataplane, now)
	t.probes(s)
	state := "none"
	if n := len(s.Alarms); n > 0 {
		state = fmt.Sprint(n)
	}
	t.part("alarms", state, "")
	t.flush()
	for _, a := range s.Alarms {
		fmt.Fprintf(w, "\n%s, for %s:\n", a.Kind, ago(now, a.Since))
		for _, line := range wrap(a.Text, columns-2) {
			fmt.Fprintln(w, "  "+line)
		}
	}
}

// statusTable is a table whose last column is text.
type statusTable struct {
	*table
	// width is that of the last column.
	width int
}

// detailsWidth is what the other columns leave of it.
const detailsWidth = columns - len("programming  unhealthy  ")

// part adds rows about a part of the agent, or more about the one before if it has no
// name.
func (t *statusTable) part(name, state, format string, args ...any) {
	lines := wrap(fmt.Sprintf(format, args...), t.width)
	if len(lines) == 0 {
		lines = []string{""}
	}
	for _, line := range lines {
		t.row(name, state, line)
		name, state = "", ""
	}
}

// more adds rows about the part before, none if there is nothing to say.
func (t *statusTable) more(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != "" {
		t.part("", "", "%s", text)
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

func (t *statusTable) dataplane(d *api.Dataplane, now time.Time) {
	t.part("dataplane", dataplaneState(d), "%d ServicePorts, %d endpoints, %d elements (%s)",
		d.ServicePorts, d.Endpoints, d.Elements, d.Layout)
	last := "nothing was programmed yet"
	if !d.LastSync.IsZero() {
		last = fmt.Sprintf("last sync %s ago in %s", ago(now, d.LastSync), seconds(d.LastSyncSeconds))
	}
	t.more("%s; %d syncs, %d failures", last, d.Syncs, d.Failures)
	if d.Problems > 0 {
		t.more("%d things are not served as written: see the log", d.Problems)
	}
	if !d.Pending.IsZero() {
		t.more("a change has waited for %s", ago(now, d.Pending))
	}
	t.more("%s", d.LastError)
	for _, outage := range d.Outages {
		t.more("%s; the last state stays", outage)
	}
}

func (t *statusTable) probes(s *api.Status) {
	p := &s.Probes
	if p.Mode == observe.Off {
		t.part("probes", "off", "%s", p.Reason)
		return
	}
	state := string(p.Mode)
	if p.ReadError != "" {
		state = "failing"
	}
	t.part("probes", state, "%d selections, %d foreign", p.Selections, p.Foreign)
	t.more("%s", p.Reason)
	t.hooks(p.Hooks)
	if p.PinPath != "" {
		t.more("pinned at %s", p.PinPath)
	} else {
		t.more("not pinned: counters end with the agent")
	}
	l := p.Losses
	t.more("not counted %d, not timed %d, sent again %d, clashed %d", l.Full, l.Unmatched, l.Retransmitted, l.Clashed)
	t.more("%s", p.ReadError)
	if q := s.Programming; q.Count > 0 {
		t.part("programming", fmt.Sprint(q.Count), "from change to first selection: p50 %s, p99 %s",
			seconds(q.P50), seconds(q.P99))
	}
}

// hooks says at which priorities probes are attached, and where.
func (t *statusTable) hooks(hooks []observe.ProbeHook) {
	places := make(map[string][]string)
	var order []string
	for _, h := range hooks {
		at := fmt.Sprintf("%d and %d", h.Before, h.After)
		if places[at] == nil {
			order = append(order, at)
		}
		places[at] = append(places[at], fmt.Sprintf("%s %s", h.Family, h.Hook))
	}
	for _, at := range order {
		where := strings.Join(places[at], ", ")
		if len(places[at]) == len(hooks) {
			where = "all hooks"
		}
		t.more("priorities %s at %s", at, where)
	}
}

// columns is the width that tables keep to.
const columns = 80

// wrap breaks a text at blanks. A word that is too long has a line of its own.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
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
