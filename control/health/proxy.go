// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"sync"
	"time"
)

// Proxy knows since when a change has been waiting for the kernel.
type Proxy struct {
	timeout time.Duration
	now     func() time.Time

	mu sync.Mutex
	// queued is since when a change has waited at the longest, zero if none does.
	queued time.Time
	// latest is when the last change came.
	latest time.Time
	// updated is when the kernel was last as it should be, zero before the first time.
	updated time.Time
	// leaving says that load balancers should send no new connections here.
	leaving bool
	outages []string
}

// NewProxy returns a healthy proxy. It is unhealthy while a change waits for longer
// than timeout, which kube-proxy takes to be two sync periods. now is time.Now if
// nil.
func NewProxy(timeout time.Duration, now func() time.Time) *Proxy {
	if now == nil {
		now = time.Now
	}
	return &Proxy{timeout: timeout, now: now}
}

// Queued notes that there is a change to program.
func (p *Proxy) Queued() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest = p.now()
	if p.queued.IsZero() {
		p.queued = p.latest
	}
}

// Updated notes that the kernel is as it should be with all changes queued before
// since.
func (p *Proxy) Updated(since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.updated = p.now()
	switch {
	case !p.latest.After(since):
		p.queued = time.Time{}
	case p.queued.Before(since):
		// Of the changes that came later only the last one's time is known.
		p.queued = since
	}
}

// Healthy says whether no change has waited for too long.
func (p *Proxy) Healthy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.healthy(p.now())
}

func (p *Proxy) healthy(now time.Time) bool {
	return p.queued.IsZero() || now.Sub(p.queued) < p.timeout
}

// SetEligible says whether load balancers should send new connections to this node.
func (p *Proxy) SetEligible(eligible bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaving = !eligible
}

// SetOutages says what cannot be read at the moment. That is no reason to be
// unhealthy: the rules stay.
func (p *Proxy) SetOutages(outages []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outages = outages
}
