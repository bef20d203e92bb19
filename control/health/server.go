// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/veridict/veridict/dataplane/runner"
)

// Check is what the healthCheckNodePort of one Service answers.
type Check struct {
	// Port is never 0.
	Port uint16
	// LocalEndpoints are the Ready endpoints on this node, each address once.
	LocalEndpoints int
}

// retryAfter is how long a port that could not be listened on is left alone.
const retryAfter = 5 * time.Second

// Options are what a [Server] is made of.
type Options struct {
	// Listen is that of a net.ListenConfig if nil.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Healthy says whether the proxy itself works.
	Healthy func() bool
	Logger  *slog.Logger
	// Clock is the system's clock if nil.
	Clock runner.Clock
}

// Server listens on the ports of all Services.
type Server struct {
	o Options

	mu        sync.Mutex
	addresses []netip.Addr
	checks    map[string]Check
	servers   map[string]*instance
	// failures are the errors that were logged, by Service.
	failures map[string]string
	stopping sync.WaitGroup
	// ended is set when Run has ended, which is for good.
	ended bool
}

// NewServer returns a Server without Services.
func NewServer(o Options) *Server {
	if o.Listen == nil {
		o.Listen = new(net.ListenConfig).Listen
	}
	if o.Clock == nil {
		o.Clock = runner.RealClock{}
	}
	return &Server{
		o: o, checks: make(map[string]Check), servers: make(map[string]*instance), failures: make(map[string]string),
	}
}

// Run tries ports again that could not be listened on, until ctx is done, and then
// stops all servers.
func (s *Server) Run(ctx context.Context) error {
	for {
		timer := s.o.Clock.NewTimer(retryAfter)
		select {
		case <-ctx.Done():
			timer.Stop()
			s.end()
			s.stopping.Wait()
			return context.Cause(ctx)
		case <-timer.C():
		}
		s.mu.Lock()
		if len(s.failures) > 0 {
			s.apply()
		}
		s.mu.Unlock()
	}
}

// end stops all servers. Whoever calls Sync may end later, and starts none again.
func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.checks = nil
	s.apply()
}

// SetAddresses says which addresses of the node are listened on; all if there are
// none.
func (s *Server) SetAddresses(addresses []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.addresses, addresses) {
		return
	}
	s.addresses = slices.Clone(addresses)
	for name := range s.servers {
		s.stop(name)
	}
	s.apply()
}

// Sync replaces the checks of all Services, by "namespace/name". A port that passes
// from one Service to another is given up first. After Run it does nothing.
func (s *Server) Sync(checks map[string]Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.checks = maps.Clone(checks)
	s.apply()
}

func (s *Server) apply() {
	for name, server := range s.servers {
		if want, ok := s.checks[name]; !ok || want.Port != server.port {
			s.stop(name)
		}
	}
	names := make([]string, 0, len(s.checks))
	for name, check := range s.checks {
		if server := s.servers[name]; server != nil {
			server.endpoints.Store(int64(check.LocalEndpoints))
			continue
		}
		names = append(names, name)
	}
	// In order, so that of two Services with one port always the same is served.
	slices.Sort(names)
	failures := make(map[string]string)
	for _, name := range names {
		if err := s.start(name, s.checks[name]); err != nil {
			failures[name] = err.Error()
			if s.failures[name] != err.Error() {
				s.o.Logger.Error("cannot serve a healthCheckNodePort, trying again", "service", name,
					"port", s.checks[name].Port, "err", err)
			}
		}
	}
	s.failures = failures
}

func (s *Server) stop(name string) {
	s.servers[name].stop(&s.stopping)
	delete(s.servers, name)
}

// start listens on all addresses or on none.
func (s *Server) start(name string, check Check) error {
	for other, server := range s.servers {
		if server.port == check.Port {
			return fmt.Errorf("the port is that of Service %s", other)
		}
	}
	var listeners []net.Listener
	for _, address := range s.listenAddresses(check.Port) {
		listener, err := s.o.Listen(context.Background(), "tcp", address)
		if err != nil {
			for _, l := range listeners {
				err = errors.Join(err, l.Close())
			}
			return err
		}
		listeners = append(listeners, listener)
	}
	namespace, service, _ := strings.Cut(name, "/")
	server := &instance{namespace: namespace, service: service, port: check.Port, healthy: s.o.Healthy, listeners: listeners}
	server.endpoints.Store(int64(check.LocalEndpoints))
	server.serve(s.o.Logger)
	s.servers[name] = server
	return nil
}

func (s *Server) listenAddresses(port uint16) []string {
	if len(s.addresses) == 0 {
		return []string{":" + strconv.Itoa(int(port))}
	}
	list := make([]string, len(s.addresses))
	for i, addr := range s.addresses {
		list[i] = netip.AddrPortFrom(addr, port).String()
	}
	return list
}

// Times that a load balancer never needs.
const (
	readTimeout  = 5 * time.Second
	writeTimeout = 5 * time.Second
	idleTimeout  = 2 * time.Minute
	stopTimeout  = time.Second
)

func (i *instance) httpServer(logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler: i, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}
