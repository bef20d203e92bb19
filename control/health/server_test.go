// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/veridict/veridict/dataplane/runner"
	"github.com/veridict/veridict/dataplane/runner/runnertest"
)

// rig is a Server whose ports are stood for by free ones.
type rig struct {
	t       *testing.T
	server  *Server
	clock   *waitClock
	healthy atomic.Bool
	log     bytes.Buffer

	mu    sync.Mutex
	bound map[string]net.Listener
	taken map[string]bool
}

// waitClock tells when somebody waits.
type waitClock struct {
	*runnertest.Clock
	waits chan struct{}
}

func (c *waitClock) NewTimer(d time.Duration) runner.Timer {
	timer := c.Clock.NewTimer(d)
	c.waits <- struct{}{}
	return timer
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, clock: &waitClock{runnertest.NewClock(), make(chan struct{}, 8)}, bound: make(map[string]net.Listener), taken: make(map[string]bool)}
	r.healthy.Store(true)
	r.server = NewServer(Options{
		Listen: r.listen, Healthy: r.healthy.Load, Clock: r.clock,
		Logger: slog.New(slog.NewTextHandler(&r.log, nil)),
	})
	t.Cleanup(func() {
		r.server.Sync(nil)
		r.server.stopping.Wait()
		http.DefaultClient.CloseIdleConnections()
		goleak.VerifyNone(t)
	})
	return r
}

func (r *rig) listen(ctx context.Context, network, address string) (net.Listener, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken[address] || r.bound[address] != nil {
		return nil, syscall.EADDRINUSE
	}
	listener, err := new(net.ListenConfig).Listen(ctx, network, "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r.bound[address] = listener
	return &bound{listener, r, address}, nil
}

// bound gives its address back when it is closed, and only then: the server closes
// it a second time when it shuts down, and the address may be another's by then.
type bound struct {
	net.Listener
	r       *rig
	address string
}

func (b *bound) Close() error {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	if b.r.bound[b.address] == b.Listener {
		delete(b.r.bound, b.address)
	}
	return b.Listener.Close()
}

// get asks the server that listens on address.
func (r *rig) get(address string) (status int, body map[string]any, header http.Header) {
	r.t.Helper()
	r.mu.Lock()
	listener := r.bound[address]
	r.mu.Unlock()
	if listener == nil {
		return 0, nil, nil
	}
	response, err := http.Get("http://" + listener.Addr().String() + "/")
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode, body, response.Header
}

func (r *rig) wantStatus(address string, want int) {
	r.t.Helper()
	if got, body, _ := r.get(address); got != want {
		r.t.Errorf("%s answers %d (%v), want %d", address, got, body, want)
	}
}

func TestAnswers(t *testing.T) {
	r := newRig(t)
	r.server.Sync(map[string]Check{"ns/web": {Port: 31000, LocalEndpoints: 2}})
	status, body, header := r.get(":31000")
	want := map[string]any{
		"service": map[string]any{"namespace": "ns", "name": "web"}, "localEndpoints": 2.0, "serviceProxyHealthy": true,
	}
	if diff := cmp.Diff(want, body); diff != "" || status != http.StatusOK {
		t.Errorf("status %d, body (-want +got):\n%s", status, diff)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "X-Content-Type-Options": "nosniff", "X-Load-Balancing-Endpoint-Weight": "2",
	} {
		if got := header.Get(name); got != value {
			t.Errorf("header %s is %q, want %q", name, got, value)
		}
	}
	r.healthy.Store(false)
	r.wantStatus(":31000", http.StatusServiceUnavailable)
	r.healthy.Store(true)
	r.server.Sync(map[string]Check{"ns/web": {Port: 31000}})
	r.wantStatus(":31000", http.StatusServiceUnavailable)
	r.server.Sync(map[string]Check{"ns/web": {Port: 31000, LocalEndpoints: 1}})
	r.wantStatus(":31000", http.StatusOK)
}

func TestPortsMove(t *testing.T) {
	r := newRig(t)
	one := Check{Port: 31000, LocalEndpoints: 1}
	r.server.Sync(map[string]Check{"ns/a": one})
	r.server.Sync(map[string]Check{"ns/b": one, "ns/a": {Port: 31001, LocalEndpoints: 1}})
	_, body, _ := r.get(":31000")
	if body["service"].(map[string]any)["name"] != "b" {
		t.Errorf("port 31000 answers for %v, want b", body)
	}
	r.wantStatus(":31001", http.StatusOK)
	r.server.SetAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")})
	r.wantStatus(":31000", 0)
	r.wantStatus("192.0.2.1:31000", http.StatusOK)
	r.wantStatus("[2001:db8::1]:31001", http.StatusOK)
	r.server.Sync(map[string]Check{"ns/a": {Port: 31001, LocalEndpoints: 1}})
	r.wantStatus("192.0.2.1:31000", 0)
	if r.log.Len() > 0 {
		t.Errorf("unexpected log: %s", r.log.String())
	}
}

// A port that is taken is named once, and served as soon as it is free.
func TestTakenPortIsTriedAgain(t *testing.T) {
	r := newRig(t)
	r.taken[":31000"] = true
	checks := map[string]Check{"ns/a": {Port: 31000, LocalEndpoints: 1}, "ns/b": {Port: 31001, LocalEndpoints: 1}, "ns/c": {Port: 31001}}
	r.server.Sync(checks)
	r.server.Sync(checks)
	r.wantStatus(":31001", http.StatusOK)
	for _, words := range []string{"service=ns/a", "service=ns/c", "Service ns/b"} {
		if n := strings.Count(r.log.String(), words); n != 1 {
			t.Errorf("%q stands %d times in the log, want once:\n%s", words, n, r.log.String())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.server.Run(ctx) }()
	r.mu.Lock()
	delete(r.taken, ":31000")
	r.mu.Unlock()
	<-r.clock.waits
	r.clock.Advance(retryAfter)
	<-r.clock.waits
	r.wantStatus(":31000", http.StatusOK)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	r.wantStatus(":31000", 0)
}

func TestProxyIsUnhealthyWhileAChangeWaits(t *testing.T) {
	now := time.Unix(1000, 0)
	p := NewProxy(time.Minute, func() time.Time { return now })
	want := func(healthy bool) {
		t.Helper()
		if got := p.Healthy(); got != healthy {
			t.Errorf("healthy: %t, want %t", got, healthy)
		}
	}
	want(true)
	p.Queued()
	now = now.Add(59 * time.Second)
	p.Queued()
	want(true)
	now = now.Add(time.Second)
	want(false)
	p.Updated(time.Unix(999, 0))
	want(false)
	p.Updated(now)
	want(true)
}
