// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// flaky is a listener that first has no file descriptor left.
type flaky struct {
	net.Listener
	failures atomic.Int64
}

func (f *flaky) Accept() (net.Conn, error) {
	if f.failures.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return f.Listener.Accept()
}

func TestAcceptIsTriedAgain(t *testing.T) {
	r := newRig(t, server(t, "a"))
	waits := make(chan time.Duration, 8)
	fire := make(chan time.Time)
	r.syncer.o.After = func(d time.Duration) <-chan time.Time {
		waits <- d
		return fire
	}
	listen := r.syncer.o.Listen
	r.syncer.o.Listen = func(ctx context.Context, network, address string) (net.Listener, error) {
		listener, err := listen(ctx, network, address)
		f := &flaky{Listener: listener}
		f.failures.Store(3)
		return f, err
	}
	r.sync(dataplane.Update{Removed: []dataplane.ServicePortKey{r.sp.Key}})
	r.change()
	for range 3 {
		if d := <-waits; d != acceptAgain {
			t.Errorf("waits %v, want %v", d, acceptAgain)
		}
		fire <- time.Time{}
	}
	if got := r.ask(); got != "a" {
		t.Errorf("a connection came to %q, want a", got)
	}
	if err := r.syncer.Close(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(r.log.String(), "cannot accept"); n != 1 {
		t.Errorf("%d lines of three failures in a row, want one:\n%s", n, r.log.String())
	}
}

// deaf is an endpoint that does not take what it is sent, and whose answer is read
// after that was seen.
type deaf struct {
	net.Conn
	once   sync.Once
	failed chan struct{}
	answer io.Reader
}

func (d *deaf) Write([]byte) (int, error) {
	d.once.Do(func() { close(d.failed) })
	return 0, syscall.EPIPE
}

func (d *deaf) Read(b []byte) (int, error) {
	<-d.failed
	return d.answer.Read(b)
}

func TestAnswerIsNotLostWithTheRequest(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	answer := strings.Repeat("x", 1<<20)
	r := newRig(t, "192.0.2.1:80")
	r.syncer.o.Dial = func(context.Context, string, string) (net.Conn, error) {
		return &deaf{Conn: near, failed: make(chan struct{}), answer: strings.NewReader(answer)}, nil
	}
	r.sync(dataplane.Update{Removed: []dataplane.ServicePortKey{r.sp.Key}})
	r.change()
	conn := r.dial()
	defer conn.Close()
	if _, err := io.WriteString(conn, "request"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || len(got) != len(answer) {
		t.Errorf("got %d bytes, %v; want %d", len(got), err, len(answer))
	}
}

// A sync costs in proportion to what it changes.
func TestOnlyChangedServicePortsAreTouched(t *testing.T) {
	r := newRig(t, server(t, "a"))
	p := r.syncer.proxies[r.sp.Key]
	before := &p.rows[0]
	r.sync(dataplane.Update{})
	other := r.sp
	other.Key.Name, other.External = "other", &dataplane.External{NodePort: 30081}
	r.sync(dataplane.Update{Changed: []dataplane.ServicePort{other}})
	if &p.rows[0] != before {
		t.Error("the endpoints of a ServicePort that did not change were made again")
	}
	if r.listeners["127.0.0.1:30081"] == nil {
		t.Error("the new ServicePort is not served")
	}
	r.change()
	if &p.rows[0] == before {
		t.Error("the endpoints of a ServicePort that changed are the old ones")
	}
}

// A NodePort passes from one ServicePort to another in one update.
func TestNodePortPasses(t *testing.T) {
	r := newRig(t, server(t, "a"))
	other := r.sp
	other.Key.Name = "other"
	other.Endpoints = nil
	r.sync(dataplane.Update{Changed: []dataplane.ServicePort{other}, Removed: []dataplane.ServicePortKey{r.sp.Key}})
	if r.syncer.proxies[r.sp.Key] != nil || r.syncer.proxies[other.Key] == nil || r.syncer.Failures() != 0 {
		t.Errorf("the port did not pass: %v", r.syncer.proxies)
	}
	if got := r.ask(); got != "" {
		t.Errorf("the new ServicePort, without endpoints, answers %q", got)
	}
}
