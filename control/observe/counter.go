// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe

import "time"

// counter is one of the kernel's, as it was at the last reading.
type counter struct {
	drawn, pinned uint64
	// earlyDrawn and earlyPinned are what it counted before anybody was known to have
	// the frontend: a ServicePort may be in the kernel before it is known here. They
	// become the first owner's.
	earlyDrawn, earlyPinned uint64
	// unplaced is what it counted while its owner was not known to have the endpoint.
	unplaced uint64
	// owner is who it counts for, nil for nobody; found at its version.
	owner   *record
	version int
	pool    *pool
	// place is that of the endpoint in the pool, -1 if it is not there.
	place int
	kind  selectionKind
	// owned says that it has had an owner.
	owned bool
	// still says since which reading it has neither changed nor got another meaning.
	still time.Time
	// reading is the last one that had it.
	reading int
}

// selectionKind says what a counter counts.
type selectionKind uint8

const (
	// expected: an endpoint that the ServicePort has.
	expected selectionKind = iota
	// unexpected: one that it does not have.
	unexpected
	// missed: the frontend was not translated.
	missed
	// unserved: it was not, and had no endpoint for every client.
	unserved
)

// useless says whether the counter can be removed, as it has not grown for a whole
// interval since its endpoint or its ServicePort has left.
func (c *counter) useless(now time.Time, interval time.Duration) bool {
	return (c.owner == nil || c.kind == unexpected) && now.Sub(c.still) >= interval
}

// grown returns by how much a counter has grown, and remembers it. One that has become
// smaller was removed and began anew.
func grown(before *uint64, now uint64) uint64 {
	more := now - *before
	if now < *before {
		more = now
	}
	*before = now
	return more
}
