// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"testing"
	"time"

	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// watched is a Syncer that is told of changes.
type watched struct {
	*nftables.Syncer
	changed chan struct{}
}

func newWatched(t testing.TB, options nftables.Options) *watched {
	w := &watched{Syncer: newSyncer(t, options), changed: make(chan struct{}, 1000)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Watch(ctx, func() { w.changed <- struct{}{} }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	// Watch is ready when it sees what is done to the tables.
	mustReset(t, w.Syncer, dataplane.State{})
	await(t, func() bool {
		nft(t, "add chain ip veridict probe")
		nft(t, "delete chain ip veridict probe")
		return w.drain() > 0
	})
	return w
}

func (w *watched) drain() int {
	n := 0
	for {
		select {
		case <-w.changed:
			n++
		default:
			return n
		}
	}
}

// next waits for a change.
func (w *watched) next(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	select {
	case <-ctx.Done():
		t.Fatal("the change was not noticed in 30 s")
	case <-w.changed:
	}
}

func TestWatchNoticesOthers(t *testing.T) {
	for name, damage := range map[string]string{
		"flush ruleset":   "flush ruleset",
		"deleted table":   "delete table ip6 veridict",
		"deleted element": "delete element ip veridict cluster-ips { 10.96.0.13 }",
		"added rule":      "add rule ip veridict services drop",
		"added table":     "delete table ip veridict; add table ip veridict",
	} {
		t.Run(name, func(t *testing.T) {
			start(t)
			w := newWatched(t, quiet(nftables.MarkFree))
			state := smallState()
			mustReset(t, w.Syncer, state)
			nft(t, "delete table ip6 veridict; add table ip6 veridict")
			w.next(t)
			mustReset(t, w.Syncer, state)
			w.drain()
			nft(t, damage)
			w.next(t)
			mustReset(t, w.Syncer, state)
			verify(t, nftables.MarkFree, state)
		})
	}
}

// TestWatchIgnoresOwn makes changes of every kind, and changes to tables of
// others. A change by another process, made last, shows that all of them had been
// looked at before.
func TestWatchIgnoresOwn(t *testing.T) {
	start(t)
	clock := newClock()
	options := quiet(nftables.MarkFree)
	options.Now = clock.Now
	w := newWatched(t, options)
	// The last of newWatched's own changes.
	nft(t, "add chain ip veridict last")
	w.next(t)
	state := smallState()
	mustReset(t, w.Syncer, state)
	w.drain()

	settings := clusterSettings()
	settings.MasqueradeAll = true
	sp := find(t, state, "s40-udp-IPv6")
	sp.Endpoints = sp.Endpoints[:39]
	mustSync(t, w.Syncer, dataplane.Update{Settings: &settings})
	mustSync(t, w.Syncer, dataplane.Update{Changed: []dataplane.ServicePort{sp}})
	mustSync(t, w.Syncer, dataplane.Update{Removed: []dataplane.ServicePortKey{find(t, state, "s17-tcp-IPv4").Key}})
	settle(t, w.Syncer, clock)
	nft(t, "add table ip other; add chain ip other veridict; delete table ip other; add table inet veridict; delete table inet veridict")
	mustReset(t, w.Syncer, state)

	if n := w.drain(); n != 0 {
		t.Errorf("%d changes were taken for those of others", n)
	}
	nft(t, "add chain ip veridict other")
	w.next(t)
	if n := w.drain(); n != 0 {
		t.Errorf("%d changes were taken for those of others", n)
	}
}
