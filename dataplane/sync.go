// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"time"
)

// Syncer programs a dataplane. Implementations are not safe for concurrent
// use.
type Syncer interface {
	// Reset makes the dataplane equal to state, whatever it holds now: at
	// start, after an error, and after somebody else has changed it.
	// Connections to ServicePorts that stay the same are not disturbed.
	Reset(ctx context.Context, state State) (Report, error)

	// Sync programs what has changed since the last call; its cost is in
	// proportion to the update. An empty update does the work that became
	// due (see [Report.Due]). After an error, which [Rejection]s are not,
	// the dataplane may hold part of the update and Reset must be called.
	Sync(ctx context.Context, update Update) (Report, error)
}

// Update is what has changed between two states. A ServicePort stands in it at
// most once. Removals take effect together with the changes, so that a VIP can
// pass from one ServicePort to another in a single update.
type Update struct {
	// Settings is nil where they stay as they are.
	Settings *Settings
	// Changed are new and changed ServicePorts, whole.
	Changed []ServicePort
	// Removed are the ServicePorts that are gone; an unknown one is no error.
	Removed []ServicePortKey
	// Seen is when the first of these changes was noticed, zero if nobody knows.
	Seen time.Time
}

// Empty says whether the update changes nothing.
func (u *Update) Empty() bool {
	return u.Settings == nil && len(u.Changed) == 0 && len(u.Removed) == 0
}

// Report says what one call of a [Syncer] did and what the dataplane now holds.
type Report struct {
	// Programmed counts what the dataplane holds after the call.
	Programmed Counts
	// ElementsSent counts the elements added and deleted by this call.
	ElementsSent int
	// Transactions counts the transactions of this call.
	Transactions int
	// LongestCommit is the longest time that one transaction took, which is
	// how long the kernel may have kept other users of nftables waiting.
	LongestCommit time.Duration
	// StaleFlows counts the connections that were removed from connection
	// tracking because they went to an endpoint that does not serve any more.
	StaleFlows int
	// Rejected are all ServicePorts that are not programmed as wanted because
	// the kernel refused them, not only those of this call. They are tried
	// again at Due.
	Rejected []Rejection
	// Due is when Sync should be called again at the latest, with an empty
	// update if there is no other: rows and chains that nothing uses any more
	// are removed a while later, rejected ServicePorts are retried. Zero if
	// there is nothing to do.
	Due time.Time
}

// Counts are sizes of the dataplane, both families together.
type Counts struct {
	ServicePorts int
	// Endpoints counts an endpoint once for each ServicePort that has it.
	Endpoints int
	Elements  int
	Chains    int
	// Maps counts sets and maps.
	Maps int
}

// Rejection is a ServicePort that could not be programmed.
type Rejection struct {
	Key ServicePortKey
	// Err is what the kernel said, in words that name the element.
	Err error
}
