// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/veridict/veridict/control/observe"
)

// topLine is a line of the screen.
type topLine struct {
	text  string
	style topStyle
}

// topStyle is how a line looks on a terminal.
type topStyle int

const (
	stylePlain topStyle = iota
	// styleStrong is for what is wrong.
	styleStrong
	// styleInverse is for the header of the table.
	styleInverse
)

// lines draws the model. None is wider than its width, and there are at most height.
func (m *topModel) lines() []topLine {
	out := append(m.header(), topLine{m.tableHeader(), styleInverse})
	end := len(m.rows)
	if m.height > 0 {
		end = min(end, m.offset+m.room())
	}
	for _, row := range m.rows[min(m.offset, end):end] {
		out = append(out, topLine{text: m.tableRow(row)})
	}
	if m.height > 0 {
		out = out[:min(len(out), m.height-1)]
		for len(out) < m.height-1 {
			out = append(out, topLine{})
		}
		out = append(out, topLine{text: m.footer()})
	}
	for i := range out {
		out[i].text = cutLine(out[i].text, m.width)
	}
	return out
}

// room is for how many rows there is room on the screen.
func (m *topModel) room() int {
	if m.height == 0 {
		return len(m.rows)
	}
	return max(m.height-len(m.header())-2, 0)
}

// header is what is above the table.
func (m *topModel) header() []topLine {
	if m.frame == nil {
		return append(m.firstLine("veridict top"), m.silence()...)
	}
	s := m.frame.status
	out := m.firstLine(fmt.Sprintf("veridict top  %s  %s  probes %s  every %s",
		s.Agent.Node, s.Dataplane.Layout, s.Probes.Mode, m.delay))
	out = append(out, m.silence()...)
	out = append(out, m.dataplaneLines()...)
	out = append(out, m.probesLines()...)
	return append(out, m.alarmLines()...)
}

// firstLine has the time at its end.
func (m *topModel) firstLine(title string) []topLine {
	clock := m.now.Format(time.TimeOnly)
	title = cutLine(title, m.width-len(clock)-2)
	blanks := max(m.width-utf8.RuneCountInString(title)-len(clock), 1)
	return []topLine{{text: title + strings.Repeat(" ", blanks) + clock}}
}

// silence says that the agent does not answer.
func (m *topModel) silence() []topLine {
	silent := m.now.Sub(m.taken)
	switch {
	case m.gone != nil:
		return m.wrong(fmt.Sprintf("no answer for %s: %v", ago(m.now, m.taken), m.gone))
	case !m.taken.IsZero() && silent > 2*m.delay && silent > 2*time.Second:
		return m.wrong(fmt.Sprintf("no answer for %s, still waiting", ago(m.now, m.taken)))
	}
	return nil
}

// wrongLines is how many lines something wrong has at most.
const wrongLines = 2

// wrong is a text about something that is wrong.
func (m *topModel) wrong(text string) []topLine {
	var out []topLine
	lines := wrap(text, m.width-2)
	for i, line := range lines[:min(len(lines), wrongLines)] {
		if i > 0 {
			line = "  " + line
		}
		out = append(out, topLine{line, styleStrong})
	}
	return out
}

func (m *topModel) dataplaneLines() []topLine {
	d := &m.frame.status.Dataplane
	state := dataplaneState(d)
	text := fmt.Sprintf("%d ServicePorts, %d endpoints  dataplane %s, last sync %s ago",
		d.ServicePorts, d.Endpoints, state, ago(m.now, d.LastSync))
	if d.LastSync.IsZero() {
		text = fmt.Sprintf("dataplane %s, nothing is programmed yet", state)
	}
	if state == stateHealthy {
		return []topLine{{text: text}}
	}
	return append([]topLine{{text, styleStrong}}, m.wrong(d.LastError)...)
}

func (m *topModel) probesLines() []topLine {
	p := &m.frame.status.Probes
	if p.Mode == observe.Off {
		return []topLine{{text: "probes off: " + p.Reason}}
	}
	first := "-"
	if m.frame.first.Total() > 0 {
		first = fmt.Sprintf("p50 %s  p99 %s", seconds(m.frame.first.Quantile(0.5).Seconds()),
			seconds(m.frame.first.Quantile(0.99).Seconds()))
	}
	out := []topLine{{text: fmt.Sprintf("selections %s  foreign %s  first packet %s",
		perSecond(m.frame.selections), perSecond(m.frame.foreign), first)}}
	if p.ReadError != "" {
		out = append(out, m.wrong("counters cannot be read: "+p.ReadError)...)
	}
	return out
}

// shownAlarms is how many are shown with their text, which says what kind they are.
const shownAlarms = 3

func (m *topModel) alarmLines() []topLine {
	alarms := m.frame.status.Alarms
	if len(alarms) == 0 {
		return []topLine{{text: "alarms none"}}
	}
	title := fmt.Sprintf("alarms %d", len(alarms))
	if len(alarms) > shownAlarms {
		title += fmt.Sprintf(", the first %d here, all in veridict status", shownAlarms)
		alarms = alarms[:shownAlarms]
	}
	out := []topLine{{title, styleStrong}}
	for i := range alarms {
		out = append(out, m.wrong(fmt.Sprintf("%s: %s", ago(m.now, alarms[i].Since), alarms[i].Text))...)
	}
	return out
}

// The table without its first column is fixedWidth wide; totals have room from
// totalsWidth on.
const (
	fixedWidth  = 48
	totalsWidth = columns + 12
)

func (m *topModel) tableHeader() string {
	return m.columns("SERVICE", "PROTO", "ENDPOINTS", "SEL/S", "SELECTIONS", "VERDICT", "EVIDENCE")
}

func (m *topModel) tableRow(r *topRow) string {
	return m.columns(r.id, r.protocol, fmt.Sprint(r.endpoints), r.rate.String(), fmt.Sprint(r.selections),
		string(r.verdict), evidence(r.logE))
}

func (m *topModel) columns(id, protocol, endpoints, rate, total, verdict, evidence string) string {
	width := m.width - fixedWidth
	if m.width >= totalsWidth {
		total = fmt.Sprintf("  %10s", total)
		width -= len("  SELECTIONS")
	} else {
		total = ""
	}
	width = max(width, len("SERVICE"))
	return fmt.Sprintf("%-*s  %-5s  %9s  %7s%s  %-8s  %9s", width, shorten(id, width), protocol, endpoints, rate, total,
		verdict, evidence)
}

// footer says what is shown, and what keys do.
func (m *topModel) footer() string {
	if m.editing {
		return "filter: " + m.filter + "_  (Enter keeps it, Esc clears it)"
	}
	last := min(m.offset+m.room(), len(m.rows))
	left := fmt.Sprintf("%d-%d of %d by %s", min(m.offset+1, last), last, len(m.rows), m.order)
	if m.room() == 0 || last == 0 {
		left = fmt.Sprintf("%d by %s", len(m.rows), m.order)
	}
	if m.filter != "" {
		left += fmt.Sprintf(", with %q", m.filter)
	}
	const keys = "s u n sort  / filter  q quit"
	left = cutLine(left, m.width-len(keys)-2)
	return left + strings.Repeat(" ", max(m.width-utf8.RuneCountInString(left)-len(keys), 1)) + keys
}

func perSecond(r topRate) string {
	if r < 0 {
		return r.String()
	}
	return r.String() + "/s"
}

// String prints three digits, in at most six characters.
func (r topRate) String() string {
	switch {
	case r < 0:
		return "-"
	case r == 0:
		return "0"
	case r < 0.01:
		return "<0.01"
	case r < 999.5:
		return fmt.Sprintf("%.3g", float64(r))
	}
	unit := 0
	for r >= 999.5 && unit < len("kMGT") {
		r /= 1000
		unit++
	}
	return fmt.Sprintf("%.3g%c", float64(r), "kMGT"[unit-1])
}

// cutLine ends a line at the width. What a terminal would take for a command is replaced.
func cutLine(text string, width int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(width, 0)])
}
