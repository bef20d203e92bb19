// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// Progress shows how far a run is. The calls come from one goroutine at a time,
// Begin and End in turns.
type Progress interface {
	// Begin starts a phase of total steps.
	Begin(phase string, total int)
	// Advance says that a step is done.
	Advance()
	// End ends the phase with what came of it in a few words; after an error
	// it may not be called.
	End(summary string)
	// Note says something between two phases, in whole lines.
	Note(text string)
	// Close ends what was begun and not ended.
	Close()
}

// NewLines returns a Progress that writes plain lines, also for each quarter
// of a longer phase.
func NewLines(w io.Writer) Progress { return &lines{w: w} }

// longPhase is the number of steps from which NewLines reports quarters.
const longPhase = 1000

type lines struct {
	w           io.Writer
	phase       string
	done, total int
}

// Begin is part of Progress.
func (l *lines) Begin(phase string, total int) { l.phase, l.done, l.total = phase, 0, total }

// Advance is part of Progress.
func (l *lines) Advance() {
	l.done++
	quarter := l.total / 4
	if l.total >= longPhase && l.done%quarter == 0 && l.done+quarter <= l.total {
		fmt.Fprintf(l.w, "%-12s %s of %s\n", l.phase, thousands(l.done), thousands(l.total))
	}
}

// End is part of Progress.
func (l *lines) End(summary string) { fmt.Fprintf(l.w, "%-12s %s\n", l.phase, summary) }

// Note is part of Progress.
func (l *lines) Note(text string) { fmt.Fprintln(l.w, text) }

// Close is part of Progress.
func (l *lines) Close() {}

// barWidth leaves some columns of 80 free: a line that the echo of Ctrl-C shifts
// must not wrap, since the next frame is drawn over one line.
const barWidth = 44

// NewBars returns a Progress that draws a bar per phase on a terminal and
// replaces it by a line when the phase ends.
func NewBars(terminal io.Writer) Progress { return &bars{lines: lines{w: terminal}} }

type bars struct {
	lines
	container *mpb.Progress
	bar       *mpb.Bar
}

// Begin is part of Progress.
func (b *bars) Begin(phase string, total int) {
	b.lines.Begin(phase, total)
	b.container = mpb.New(mpb.WithOutput(b.w), mpb.WithWidth(barWidth))
	b.bar = b.container.AddBar(int64(total),
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(fmt.Sprintf("%-12s", phase))),
		mpb.AppendDecorators(decor.Any(func(s decor.Statistics) string {
			return fmt.Sprintf("%s of %s", thousands(int(s.Current)), thousands(int(s.Total)))
		})))
}

// Advance is part of Progress.
func (b *bars) Advance() { b.bar.Increment() }

// End is part of Progress.
func (b *bars) End(summary string) {
	b.Close()
	b.lines.End(summary)
}

// Close is part of Progress.
func (b *bars) Close() {
	if b.container == nil {
		return
	}
	b.bar.Abort(true)
	b.container.Wait()
	b.container = nil
	fmt.Fprint(b.w, "\r") // the echo of Ctrl-C has moved the cursor
}
