// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/veridict/veridict/control/api"
)

func TestAnswersCommands(t *testing.T) {
	for _, tc := range []struct {
		name string
		// pid is that of who listens, 0 for nobody.
		pid  int
		want bool
	}{
		{"this process", os.Getpid(), true},
		{"another process", os.Getpid() + 1, false},
		{"nobody", 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			socket := filepath.Join(t.TempDir(), "s")
			if tc.pid != 0 {
				serveStatus(t, socket, &api.Status{Agent: api.Agent{PID: tc.pid}})
			} else {
				cancel()
			}
			if got := answersCommands(ctx, socket); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

// serveStatus answers whatever is asked with the status.
func serveStatus(t *testing.T, socket string, status *api.Status) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(status)
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener) // always ends with ErrServerClosed
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
}
