// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"time"

	"github.com/veridict/veridict/dataplane"
)

// Facts are what a Controller has done so far.
type Facts struct {
	// Synced says that the source was complete once.
	Synced bool
	// Programmed is what the kernel holds since the last success.
	Programmed dataplane.Counts
	// LastSync is when the last success ended, zero if there was none; it took Took.
	LastSync time.Time
	Took     time.Duration
	// Syncs and Failures count successes and failures.
	Syncs, Failures int
	// LastError is that of the last call, empty if it succeeded.
	LastError string
	// Pending is since when there has been something to program, zero if there is
	// not.
	Pending time.Time
	// Problems is the number of things that are not served as written.
	Problems int
	// Outages are what the source cannot read at the moment, in words.
	Outages []string
}

// Facts returns them. It may be called at any time.
func (c *Controller) Facts() Facts {
	c.mu.Lock()
	defer c.mu.Unlock()
	facts := c.done
	facts.Synced = c.synced
	facts.Pending = c.waiting
	facts.Problems = len(c.problems.all())
	facts.Outages = c.outages
	return facts
}

// noteFacts is called with mu held.
func (c *Controller) noteFacts(report *dataplane.Report, took time.Duration, err error) {
	if err != nil {
		c.done.Failures++
		c.done.LastError = err.Error()
		return
	}
	c.done.Syncs++
	c.done.LastError = ""
	c.done.Programmed = report.Programmed
	c.done.LastSync = c.o.Clock.Now()
	c.done.Took = took
}
