// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/veridict/veridict/control"
	"github.com/veridict/veridict/control/observe"
)

// Snapshots is what was observed.
type Snapshots interface {
	// Snapshot returns the last one.
	Snapshot() *observe.Snapshot
	// Refresh makes a new one.
	Refresh() *observe.Snapshot
}

// Options are what a [Server] is made of.
type Options struct {
	// Path of the socket. Its directory is made if it is missing.
	Path  string
	Agent Agent
	// Layout is the name of the kernel layout.
	Layout    string
	Facts     func() control.Facts
	Healthy   func() bool
	Snapshots Snapshots
	Logger    *slog.Logger
}

// Server answers the commands.
type Server struct{ o Options }

// NewServer returns a Server that does not listen yet.
func NewServer(o Options) *Server { return &Server{o: o} }

const (
	requestTimeout = 10 * time.Second
	stopTimeout    = time.Second
)

// Run serves until ctx is done, and returns its cause. A socket that a dead process has
// left is replaced; one of a living process is an error.
func (s *Server) Run(ctx context.Context) error {
	listener, err := listen(ctx, s.o.Path)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: s.handler(), ReadTimeout: requestTimeout, WriteTimeout: requestTimeout,
		ErrorLog: slog.NewLogLogger(s.o.Logger.Handler(), slog.LevelDebug),
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", s.o.Path, err)
		}
		return context.Cause(groupCtx)
	})
	group.Go(func() error {
		<-groupCtx.Done()
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(stopping) != nil {
			_ = server.Close()
		}
		return context.Cause(groupCtx)
	})
	return group.Wait()
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", s.status)
	mux.HandleFunc("GET /v1/services", s.services)
	mux.HandleFunc("GET /v1/services/{namespace}/{name}", s.service)
	mux.HandleFunc("GET /v1/latency", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, http.StatusOK, latencies(s.snapshot(r)))
	})
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, http.StatusNotFound, "there is no "+r.URL.Path+" in this version")
	})
	return mux
}

// snapshot makes a new one if the request wants it.
func (s *Server) snapshot(r *http.Request) *observe.Snapshot {
	if r.URL.Query().Get("fresh") == "true" {
		return s.o.Snapshots.Refresh()
	}
	return s.o.Snapshots.Snapshot()
}

func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	snapshot, facts := s.snapshot(r), s.o.Facts()
	programmed := facts.Programmed
	s.answer(w, http.StatusOK, &Status{
		Head: head("Status"), Agent: s.o.Agent,
		Dataplane: Dataplane{
			Layout: s.o.Layout, Healthy: s.o.Healthy(), Synced: facts.Synced,
			ServicePorts: programmed.ServicePorts, Endpoints: programmed.Endpoints, Elements: programmed.Elements,
			Chains: programmed.Chains, Maps: programmed.Maps,
			LastSync: facts.LastSync, LastSyncSeconds: facts.Took.Seconds(), Syncs: facts.Syncs,
			Failures: facts.Failures, LastError: facts.LastError, Pending: facts.Pending, Problems: facts.Problems,
			Outages: facts.Outages,
		},
		Probes: Probes{
			ProbeStatus: snapshot.Probes, ReadAt: snapshot.At, ReadError: snapshot.ReadError,
			Selections: snapshot.Selections, Foreign: snapshot.Foreign, Losses: snapshot.Losses,
		},
		Programming: quantiles(&snapshot.Programming), Alarms: alarms(snapshot),
	})
}

func (s *Server) services(w http.ResponseWriter, r *http.Request) {
	values := r.URL.Query()
	q := query{namespace: values.Get("namespace"), name: values.Get("name"), sort: values.Get("sort")}
	if q.sort != "" && !slices.Contains(orders(), q.sort) {
		s.fail(w, http.StatusBadRequest, fmt.Sprintf("sort %q is none of %s", q.sort, strings.Join(orders(), ", ")))
		return
	}
	if text := values.Get("limit"); text != "" {
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 1 {
			s.fail(w, http.StatusBadRequest, fmt.Sprintf("limit %q is no number above 0", text))
			return
		}
		q.limit = limit
	}
	s.answer(w, http.StatusOK, q.list(s.snapshot(r)))
}

func (s *Server) service(w http.ResponseWriter, r *http.Request) {
	q := query{namespace: r.PathValue("namespace"), name: r.PathValue("name"), pools: true}
	list := q.list(s.snapshot(r))
	if list.Total == 0 {
		s.fail(w, http.StatusNotFound, "there is no Service "+q.namespace+"/"+q.name)
		return
	}
	s.answer(w, http.StatusOK, list)
}

func (s *Server) answer(w http.ResponseWriter, code int, document any) {
	body, err := json.Marshal(document)
	if err != nil {
		s.o.Logger.Error("cannot answer", "err", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// Whoever asked may be gone.
	_, _ = w.Write(append(body, '\n'))
}

func (s *Server) fail(w http.ResponseWriter, code int, text string) {
	s.answer(w, code, &Failure{text})
}
