// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/control/api"
)

// The client reads all that the server writes: what it has read is written as the same
// document again.
func TestClientReadsDocuments(t *testing.T) {
	path := socketPath(t)
	serve(t, options(t, path))
	client := newClient(t, path)
	for _, tc := range []struct {
		name string
		ask  func() (any, error)
	}{
		{"status", func() (any, error) { return client.Status(t.Context()) }},
		{"services", func() (any, error) { return client.Services(t.Context(), api.Query{}) }},
		{"service", func() (any, error) { return client.Service(t.Context(), "shop", "cart") }},
		{"latency", func() (any, error) { return client.Latency(t.Context()) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			document, err := tc.ask()
			if err != nil {
				t.Fatal(err)
			}
			body, err := json.MarshalIndent(document, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join("testdata", tc.name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(body)+"\n"); diff != "" {
				t.Errorf("read and written (-want +got):\n%s", diff)
			}
		})
	}
}

func TestClientQueries(t *testing.T) {
	path := socketPath(t)
	serve(t, options(t, path))
	client := newClient(t, path)
	for _, tc := range []struct {
		name  string
		query api.Query
		want  []string
		total int
	}{
		{"all", api.Query{}, []string{"shop/cart:http", "shop/dns", "shop/empty"}, 3},
		{"by selections", api.Query{Sort: api.BySelections}, []string{"shop/dns", "shop/cart:http", "shop/empty"}, 3},
		{"by evidence", api.Query{Sort: api.ByEvidence}, []string{"shop/dns", "shop/empty", "shop/cart:http"}, 3},
		{"the first", api.Query{Sort: api.ByName, Limit: 1}, []string{"shop/cart:http"}, 3},
		{"more than there are", api.Query{Limit: 10}, []string{"shop/cart:http", "shop/dns", "shop/empty"}, 3},
		{"a namespace", api.Query{Namespace: "shop"}, []string{"shop/cart:http", "shop/dns", "shop/empty"}, 3},
		{"another namespace", api.Query{Namespace: "tools"}, nil, 0},
		{"a name", api.Query{Name: "dns"}, []string{"shop/dns"}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list, err := client.Services(t.Context(), tc.query)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range list.Items {
				got = append(got, list.Items[i].ID())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Services (-want +got):\n%s", diff)
			}
			if list.Total != tc.total {
				t.Errorf("total %d, want %d", list.Total, tc.total)
			}
		})
	}
}

// The agent reads its counters for each call, but for those that can do with the last.
func TestClientRefreshes(t *testing.T) {
	o := options(t, socketPath(t))
	seen := o.Snapshots.(*observer)
	serve(t, o)
	client := newClient(t, o.Path)
	for _, tc := range []struct {
		client *api.Client
		want   int
	}{
		{client, 1},
		{client.Last(), 0},
		{client, 1},
	} {
		before := seen.refreshed
		if _, err := tc.client.Latency(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := seen.refreshed - before; got != tc.want {
			t.Errorf("the counters were read %d times, want %d", got, tc.want)
		}
	}
}

func TestClientErrors(t *testing.T) {
	path := socketPath(t)
	serve(t, options(t, path))
	client := newClient(t, path)
	for _, tc := range []struct {
		name string
		ask  func() error
		want string
	}{
		{
			"unknown Service",
			func() error { _, err := client.Service(t.Context(), "shop", "missing"); return err },
			"ask the agent at " + path + ": there is no Service shop/missing",
		},
		{
			"a name that no URL can hold as it is",
			func() error { _, err := client.Service(t.Context(), "shop", "a/b?c d"); return err },
			"ask the agent at " + path + ": there is no Service shop/a/b?c d",
		},
		{
			"unknown order",
			func() error { _, err := client.Services(t.Context(), api.Query{Sort: "size"}); return err },
			"ask the agent at " + path + `: sort "size" is none of name, selections, evidence`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.ask(); err == nil || err.Error() != tc.want {
				t.Errorf("got error %v, want %s", err, tc.want)
			}
		})
	}
}

// Where nobody answers as an agent would, the error says what to do.
func TestClientWithoutAgent(t *testing.T) {
	directory := t.TempDir()
	stale := filepath.Join(directory, "stale")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(directory, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	hint := "no agent listens on %s: start veridict run, or name its socket with --socket"
	for _, tc := range []struct{ name, path, want string }{
		{"no socket", filepath.Join(directory, "missing"), hint},
		{"no directory", filepath.Join(directory, "missing", "s"), hint},
		{"a socket that was left", stale, hint},
		{"a file", file, hint},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := newClient(t, tc.path).Status(t.Context())
			if want := fmt.Sprintf(tc.want, tc.path); err == nil || err.Error() != want {
				t.Errorf("got error %v, want %s", err, want)
			}
		})
	}
}

// Another program on the socket is no agent.
func TestClientOfAnotherServer(t *testing.T) {
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }, "which may be of another version"},
		{"an error that is no document", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "gone", http.StatusGone) }, "it answered 410 Gone"},
		{"a connection that ends", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: tc.handler}
			served := make(chan error, 1)
			go func() { served <- server.Serve(listener) }()
			t.Cleanup(func() {
				_ = server.Close()
				if err := <-served; !errors.Is(err, http.ErrServerClosed) {
					t.Errorf("the server ended with %v", err)
				}
			})
			_, err = newClient(t, path).Status(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got error %v, want one with %q and the socket", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "http://") {
				t.Errorf("%v: names an address that nobody knows", err)
			}
		})
	}
}
