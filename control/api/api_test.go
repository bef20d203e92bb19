// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/veridict/veridict/control"
	"github.com/veridict/veridict/control/api"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

var update = flag.Bool("update", false, "write the golden files of testdata anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// now is when the snapshot of the tests was read.
func now() time.Time { return time.Date(2026, 3, 4, 5, 6, 7, 890_000_000, time.UTC) }

// observer has one snapshot, and counts how often it was asked for a new one.
type observer struct {
	snapshot  *observe.Snapshot
	refreshed int
}

func (o *observer) Snapshot() *observe.Snapshot { return o.snapshot }

func (o *observer) Refresh() *observe.Snapshot {
	o.refreshed++
	return o.snapshot
}

func keyOf(name, port string, family dataplane.Family) dataplane.ServicePortKey {
	return dataplane.ServicePortKey{
		ServicePortName: dataplane.ServicePortName{Namespace: "shop", Name: name, Port: port, Protocol: dataplane.TCP},
		Family:          family,
	}
}

// evenService has two endpoints, the second twice as heavy, and is drawn from as it
// should be.
func evenService() *observe.Service {
	return &observe.Service{
		Key: keyOf("cart", "http", dataplane.IPv4),
		VIPs: []dataplane.VIP{
			{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: dataplane.TCP, Port: 80},
			{Protocol: dataplane.TCP, Port: 30080},
		},
		AffinitySeconds: 600, Drawn: 300, Pinned: 30, Missed: 1,
		Pools: []observe.Pool{{
			Since: now().Add(-time.Hour),
			Endpoints: []observe.Endpoint{
				{
					Addr: netip.MustParseAddrPort("10.0.0.1:8080"), Local: true, Buckets: 1, Share: 1.0 / 3, Drawn: 100, Total: 110,
					First: now().Add(-time.Hour), Last: now(),
				},
				{Addr: netip.MustParseAddrPort("10.0.0.2:8080"), Buckets: 2, Share: 2.0 / 3, Drawn: 200, Total: 220},
			},
			Evenness: observe.Evenness{N: 300, LogE: -1.5, PValue: 0.75, Detectable: 0.25},
		}},
	}
}

// unevenService has one endpoint on this node that only traffic policy Local draws.
func unevenService() *observe.Service {
	two := []observe.Endpoint{
		{Addr: netip.MustParseAddrPort("[fd00::1]:53"), Buckets: 1, Share: 0.5, Drawn: 1000, Total: 1000},
		{Addr: netip.MustParseAddrPort("[fd00::2]:53"), Local: true, Buckets: 1, Share: 0.5, Total: 5},
	}
	return &observe.Service{
		Key:       keyOf("dns", "", dataplane.IPv6),
		VIPs:      []dataplane.VIP{{Addr: netip.MustParseAddr("fd00:96::a"), Protocol: dataplane.TCP, Port: 53}},
		Algorithm: dataplane.SourceHash, Drawn: 1005,
		Pools: []observe.Pool{
			{Endpoints: two, Evenness: observe.Evenness{N: 1000, LogE: 690, Rejected: true, Detectable: 0.1}},
			{Local: true, Endpoints: two[1:], Evenness: observe.Evenness{N: 5, Untested: "one endpoint"}},
		},
	}
}

func snapshot() *observe.Snapshot {
	hook := observe.ProbeHook{Family: dataplane.IPv4, Hook: observe.Prerouting, Before: -103, After: -99}
	s := &observe.Snapshot{
		At: now(),
		Probes: observe.ProbeStatus{
			Mode: observe.Netfilter, Hooks: []observe.ProbeHook{hook}, PinPath: "/sys/fs/bpf/veridict", Capacity: 65536,
		},
		Services: []*observe.Service{evenService(), unevenService(), {Key: keyOf("empty", "", dataplane.IPv4)}},
		Alarms: []observe.Alarm{
			{Kind: observe.ProbesFull, Since: now().Add(-time.Second), Count: 7, Text: "7 connections were not counted"},
			{Kind: observe.Uneven, Key: keyOf("dns", "", dataplane.IPv6), Since: now().Add(-time.Minute), Text: "shop/dns is uneven"},
		},
		Latencies: []observe.Latency{
			{Family: dataplane.IPv6, Hook: observe.Output, Outcome: observe.Foreign},
			{Family: dataplane.IPv4, Hook: observe.Output, Outcome: observe.Translated},
			{Family: dataplane.IPv4, Hook: observe.Prerouting, Outcome: observe.Missed},
			{Family: dataplane.IPv4, Hook: observe.Prerouting, Outcome: observe.Translated},
		},
		Losses:     observe.Losses{Full: 7, Unmatched: 1, Retransmitted: 2, Clashed: 3},
		Selections: 1335, Foreign: 12,
	}
	for range 3 {
		s.Latencies[3].Add(time.Microsecond)
	}
	s.Latencies[3].Add(time.Millisecond)
	s.Programming.Add(20 * time.Millisecond)
	return s
}

func options(t *testing.T, path string) api.Options {
	t.Helper()
	return api.Options{
		Path: path, Layout: "markfree", Snapshots: &observer{snapshot: snapshot()}, Healthy: func() bool { return true },
		Agent: api.Agent{Version: "v1.2.3", Node: "node-1", PID: 42, Started: now().Add(-24 * time.Hour)},
		Facts: func() control.Facts {
			return control.Facts{
				Synced: true, Programmed: dataplane.Counts{ServicePorts: 3, Endpoints: 5, Elements: 21, Chains: 4, Maps: 6},
				LastSync: now().Add(-3 * time.Second), Took: 12500 * time.Microsecond, Syncs: 9, Failures: 1, Problems: 2,
			}
		},
		Logger: slog.New(slog.DiscardHandler),
	}
}

// serve runs a server until the test ends, and waits until it listens.
func serve(t *testing.T, o api.Options) {
	t.Helper()
	stop, ended := start(t, o)
	t.Cleanup(func() {
		stop(errors.New("the test is over"))
		if err := <-ended; err == nil || err.Error() != "the test is over" {
			t.Errorf("Run ended with %v, want the cause", err)
		}
	})
}

// start returns when a server listens.
func start(t *testing.T, o api.Options) (stop context.CancelCauseFunc, ended <-chan error) {
	t.Helper()
	ctx, stop := context.WithCancelCause(context.WithoutCancel(t.Context()))
	end := make(chan error, 1)
	go func() { end <- api.NewServer(o).Run(ctx) }()
	client := api.NewClient(o.Path)
	defer client.Close()
	for {
		if _, err := client.Last().Status(t.Context()); err == nil {
			return stop, end
		}
		select {
		case err := <-end:
			t.Fatalf("Run ended with %v", err)
		case <-t.Context().Done():
			t.Fatal("the server does not listen")
		case <-time.After(time.Millisecond):
		}
	}
}

// socketPath is short, as paths of sockets have to be.
func socketPath(t *testing.T) string { return filepath.Join(t.TempDir(), "run", "s") }

func newClient(t *testing.T, path string) *api.Client {
	client := api.NewClient(path)
	t.Cleanup(client.Close)
	return client
}

// get asks as a program in another language would, and returns the answer as it is.
func get(t *testing.T, path, method, url string) (code int, body []byte) {
	t.Helper()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}
	request, err := http.NewRequestWithContext(t.Context(), method, "http://veridict"+url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, body
}

// What is in these files must stay as it is, but for new fields.
func TestDocuments(t *testing.T) {
	path := socketPath(t)
	serve(t, options(t, path))
	for _, tc := range []struct {
		name, method, url string
		code              int
	}{
		{"status", http.MethodGet, "/v1/status", http.StatusOK},
		{"services", http.MethodGet, "/v1/services", http.StatusOK},
		{"service", http.MethodGet, "/v1/services/shop/cart", http.StatusOK},
		{"latency", http.MethodGet, "/v1/latency", http.StatusOK},
		{"unknown-service", http.MethodGet, "/v1/services/shop/missing", http.StatusNotFound},
		{"unknown-path", http.MethodGet, "/v2/status", http.StatusNotFound},
		{"bad-limit", http.MethodGet, "/v1/services?limit=0", http.StatusBadRequest},
		{"bad-sort", http.MethodGet, "/v1/services?sort=size", http.StatusBadRequest},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, body := get(t, path, tc.method, tc.url)
			if code != tc.code {
				t.Errorf("code %d, want %d", code, tc.code)
			}
			var indented bytes.Buffer
			if err := json.Indent(&indented, body, "", "  "); err != nil {
				t.Fatal(err)
			}
			compareGolden(t, tc.name+".json", indented.Bytes())
		})
	}
}

func compareGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got), see -update:\n%s", path, diff)
	}
}

func TestNothingCanBeChanged(t *testing.T) {
	path := socketPath(t)
	serve(t, options(t, path))
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if code, _ := get(t, path, method, "/v1/status"); code != http.StatusMethodNotAllowed {
			t.Errorf("%s: code %d, want %d", method, code, http.StatusMethodNotAllowed)
		}
	}
}
