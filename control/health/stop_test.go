// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// dial connects to the server that listens on address.
func (r *rig) dial(address string) net.Conn {
	r.t.Helper()
	r.mu.Lock()
	listener := r.bound[address]
	r.mu.Unlock()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		r.t.Fatal(err)
	}
	return conn
}

// Load balancers keep connections open. None may go on saying 200 for a Service
// that is gone.
func TestConnectionsEndWithTheService(t *testing.T) {
	r := newRig(t)
	answering, proceed := make(chan struct{}, 1), make(chan struct{})
	r.server.o.Healthy = func() bool {
		answering <- struct{}{}
		<-proceed
		return true
	}
	r.server.Sync(map[string]Check{"ns/web": {Port: 31000, LocalEndpoints: 1}})

	idle, busy := r.dial(":31000"), r.dial(":31000")
	const request = "GET / HTTP/1.1\r\nHost: node\r\n\r\n"
	for _, conn := range []net.Conn{idle, busy} {
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		<-answering
		if conn == idle {
			proceed <- struct{}{}
			if response := read(t, bufio.NewReader(conn)); response.StatusCode != http.StatusOK {
				t.Fatalf("status %d before the Service is gone", response.StatusCode)
			}
		}
	}
	r.server.Sync(nil)
	close(proceed)
	reader := bufio.NewReader(busy)
	if response := read(t, reader); response.StatusCode != http.StatusServiceUnavailable || !response.Close {
		t.Errorf("a request under way got %d, connection closed: %t; want 503 and closed", response.StatusCode, response.Close)
	}
	for name, rest := range map[string]io.Reader{"busy": reader, "idle": idle} {
		if n, err := io.Copy(io.Discard, rest); n != 0 || err != nil {
			t.Errorf("the %s connection: %d more bytes, %v; want its end", name, n, err)
		}
	}
}

func read(t *testing.T, reader *bufio.Reader) *http.Response {
	t.Helper()
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}
	return response
}

// Who calls Sync may end later than Run.
func TestNothingIsServedAfterRun(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.server.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	r.server.Sync(map[string]Check{"ns/web": {Port: 31000, LocalEndpoints: 1}})
	r.wantStatus(":31000", 0)
}
