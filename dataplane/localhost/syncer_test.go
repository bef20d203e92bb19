// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/veridict/veridict/dataplane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inner is a Syncer that succeeds.
type inner struct{}

func (inner) Reset(context.Context, dataplane.State) (dataplane.Report, error) {
	return dataplane.Report{}, nil
}

func (inner) Sync(context.Context, dataplane.Update) (dataplane.Report, error) {
	return dataplane.Report{}, nil
}

// rig has one ServicePort with a NodePort, which a free port stands for.
type rig struct {
	t         *testing.T
	syncer    *Syncer
	listeners map[string]net.Listener
	taken     bool
	passed    atomic.Int64 // in nanoseconds
	draws     atomic.Int64
	log       bytes.Buffer
	sp        dataplane.ServicePort
}

func newRig(t *testing.T, endpoints ...string) *rig {
	r := &rig{t: t, listeners: make(map[string]net.Listener)}
	r.syncer = New(inner{}, Options{
		Logger: slog.New(slog.NewTextHandler(&r.log, nil)), Now: r.now,
		Draw: func(n int) int { return int(r.draws.Add(1)-1) % n },
		Listen: func(ctx context.Context, network, address string) (net.Listener, error) {
			if r.taken {
				return nil, syscall.EADDRINUSE
			}
			listener, err := new(net.ListenConfig).Listen(ctx, network, "127.0.0.1:0")
			r.listeners[address] = listener
			return listener, err
		},
	})
	r.sp = dataplane.ServicePort{
		Key:  dataplane.ServicePortKey{ServicePortName: dataplane.ServicePortName{Namespace: "ns", Name: "web", Protocol: dataplane.TCP}, Family: dataplane.IPv4},
		Port: 80, External: &dataplane.External{NodePort: 30080, Local: true},
	}
	r.setEndpoints(endpoints...)
	t.Cleanup(func() {
		if err := r.syncer.Close(); err != nil {
			t.Error(err)
		}
	})
	_, err := r.syncer.Reset(t.Context(), dataplane.State{
		Settings:     dataplane.Settings{Localhost: dataplane.LocalhostProxied},
		ServicePorts: map[dataplane.ServicePortKey]dataplane.ServicePort{r.sp.Key: r.sp},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) now() time.Time { return time.Unix(1000, r.passed.Load()) }

func (r *rig) pass(d time.Duration) { r.passed.Add(int64(d)) }

func (r *rig) setEndpoints(endpoints ...string) {
	r.sp.Endpoints = nil
	for _, text := range endpoints {
		r.sp.Endpoints = append(r.sp.Endpoints, dataplane.Endpoint{Addr: netip.MustParseAddrPort(text)})
	}
}

func (r *rig) sync(update dataplane.Update) dataplane.Report {
	r.t.Helper()
	report, err := r.syncer.Sync(r.t.Context(), update)
	if err != nil {
		r.t.Fatal(err)
	}
	return report
}

func (r *rig) change() dataplane.Report {
	r.t.Helper()
	return r.sync(dataplane.Update{Changed: []dataplane.ServicePort{r.sp}})
}

// dial connects to the NodePort on the loopback address.
func (r *rig) dial() *net.TCPConn {
	r.t.Helper()
	conn, err := r.tryDial()
	if err != nil {
		r.t.Fatal(err)
	}
	return conn
}

func (r *rig) tryDial() (*net.TCPConn, error) {
	r.t.Helper()
	listener := r.listeners["127.0.0.1:30080"]
	if listener == nil {
		r.t.Fatal("nobody listens on 127.0.0.1:30080")
	}
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// ask returns the name of the server that a connection comes to, empty if it ends.
func (r *rig) ask() string {
	r.t.Helper()
	conn, err := r.tryDial()
	if errors.Is(err, syscall.ECONNRESET) {
		return ""
	}
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	line, _ := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line)
}

// server says its name, and then sends back in upper case what it got until the
// client has ended.
func server(t *testing.T, name string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				fmt.Fprintln(conn, name)
				text, _ := io.ReadAll(conn)
				_, _ = conn.Write(bytes.ToUpper(text))
			}()
		}
	}()
	return listener.Addr().String()
}

func TestConnectionsSpreadAndHalfClose(t *testing.T) {
	r := newRig(t, server(t, "a"), server(t, "b"))
	if got := r.ask() + r.ask() + r.ask(); got != "aba" {
		t.Errorf("three connections came to %q, want aba", got)
	}
	conn := r.dial()
	defer conn.Close()
	fmt.Fprint(conn, strings.Repeat("x", 1<<20))
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if want := "b\n" + strings.Repeat("X", 1<<20); err != nil || string(got) != want {
		t.Errorf("got %d bytes back, %v, want %d", len(got), err, len(want))
	}
}

func TestWeights(t *testing.T) {
	r := newRig(t, server(t, "a"), server(t, "b"))
	r.sp.Endpoints[0].Weight = 3
	r.change()
	got := ""
	for range 8 {
		got += r.ask()
	}
	if got != "aaabaaab" {
		t.Errorf("eight connections came to %q, want aaabaaab", got)
	}
}

func TestAffinityIsASlidingWindow(t *testing.T) {
	a, b := server(t, "a"), server(t, "b")
	r := newRig(t, a, b)
	r.sp.AffinitySeconds = 10
	r.change()
	got := ""
	for range 3 {
		got += r.ask()
		r.pass(9 * time.Second)
	}
	r.pass(time.Second)
	got += r.ask()
	r.setEndpoints(a)
	r.change()
	got += r.ask()
	if got != "aaaba" {
		t.Errorf("connections came to %q, want a three times, b after the window, and a when b has left", got)
	}
}

func TestConnectionsWithoutEndpointsEnd(t *testing.T) {
	r := newRig(t)
	if got := r.ask(); got != "" {
		t.Errorf("answer %q without endpoints", got)
	}
	r.setEndpoints("127.0.0.1:1")
	r.change()
	if got := r.ask(); got != "" {
		t.Errorf("answer %q from an endpoint that refuses", got)
	}
}

func TestOpenConnectionsSurviveEndpointsButNotTheServicePort(t *testing.T) {
	r := newRig(t, server(t, "a"))
	conn := r.dial()
	defer conn.Close()
	reader := bufio.NewReader(conn)
	if line, _ := reader.ReadString('\n'); line != "a\n" {
		t.Fatalf("first line %q", line)
	}
	r.setEndpoints()
	r.change()
	r.sync(dataplane.Update{Settings: &dataplane.Settings{Localhost: dataplane.LocalhostProxied}})
	select {
	case <-r.syncer.proxies[r.sp.Key].ctx.Done():
		t.Error("the connection ended with its endpoint")
	default:
	}
	r.sync(dataplane.Update{Settings: &dataplane.Settings{Localhost: dataplane.LocalhostRejected}})
	if _, err := reader.ReadByte(); err == nil {
		t.Error("the connection goes on although NodePorts are rejected")
	}
}

func TestTakenPortIsTriedAgain(t *testing.T) {
	r := newRig(t, server(t, "a"))
	r.sp.External = &dataplane.External{NodePort: 30081}
	r.taken = true
	report := r.change()
	r.change()
	if n := strings.Count(r.log.String(), "nodePort=30081"); n != 1 || r.syncer.Failures() != 1 {
		t.Errorf("the port stands %d times in the log, %d failures: want once each:\n%s", n, r.syncer.Failures(), r.log.String())
	}
	if want := r.now().Add(retryAfter); report.Due != want {
		t.Errorf("due %v, want %v", report.Due, want)
	}
	r.taken = false
	r.sync(dataplane.Update{})
	if r.listeners["127.0.0.1:30081"] == nil || r.syncer.Failures() != 0 {
		t.Error("the port is not served although it is free")
	}
}
