// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
)

// instance answers for one Service.
type instance struct {
	namespace, service string
	port               uint16
	healthy            func() bool
	listeners          []net.Listener
	endpoints          atomic.Int64
	gone               atomic.Bool

	server *http.Server
	done   sync.WaitGroup
}

func (i *instance) serve(logger *slog.Logger) {
	i.server = i.httpServer(logger)
	for _, listener := range i.listeners {
		i.done.Go(func() {
			err := i.server.Serve(listener)
			if !i.gone.Load() && !errors.Is(err, http.ErrServerClosed) {
				logger.Error("a healthCheckNodePort is not answered any more", "service", i.namespace+"/"+i.service, "err", err)
			}
		})
	}
}

// stop gives the port up at once. Requests under way are answered with 503, in the
// background; stopped is told when that is over.
func (i *instance) stop(stopped *sync.WaitGroup) {
	i.gone.Store(true)
	i.server.SetKeepAlivesEnabled(false)
	for _, listener := range i.listeners {
		_ = listener.Close()
	}
	stopped.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := i.server.Shutdown(ctx); err != nil {
			_ = i.server.Close()
		}
		i.done.Wait()
	})
}

// answer is the body, with kube-proxy's names.
type answer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int64 `json:"localEndpoints"`
	ServiceProxyHealthy bool  `json:"serviceProxyHealthy"`
}

// ServeHTTP is part of http.Handler.
func (i *instance) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	body := answer{LocalEndpoints: i.endpoints.Load(), ServiceProxyHealthy: i.healthy()}
	body.Service.Namespace, body.Service.Name = i.namespace, i.service
	status := http.StatusOK
	if i.gone.Load() {
		body.LocalEndpoints = 0
	}
	if body.LocalEndpoints == 0 || !body.ServiceProxyHealthy {
		status = http.StatusServiceUnavailable
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(body.LocalEndpoints, 10))
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(&body)
}
