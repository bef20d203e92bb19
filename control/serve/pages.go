// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"io"
	"net/http"
	"net/http/pprof"
)

// Pages are those of kube-proxy's metricsBindAddress.
type Pages struct {
	// Metrics answers /metrics.
	Metrics http.Handler
	// Config is the configuration in effect as a JSON object.
	Config []byte
	// Profiling serves /debug/pprof, too.
	Profiling bool
}

// proxyMode is kube-proxy's name for what veridict programs. Other programs ask for
// it to choose where they put their own rules.
const proxyMode = "nftables"

// Handler answers GET and HEAD of the pages.
func (p *Pages) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.Metrics)
	mux.HandleFunc("GET /proxyMode", text(proxyMode))
	mux.HandleFunc("GET /healthz", text("ok"))
	mux.HandleFunc("GET /configz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(p.Config)
	})
	if p.Profiling {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func text(answer string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		header := w.Header()
		header.Set("Content-Type", "text/plain; charset=utf-8")
		header.Set("X-Content-Type-Options", "nosniff")
		_, _ = io.WriteString(w, answer)
	}
}
