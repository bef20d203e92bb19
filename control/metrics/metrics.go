// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/veridict/veridict/control"
)

// DefaultLimit is how many Services, and how many endpoints, have series of their
// own.
const DefaultLimit = 1000

// Options are what [Metrics] are made of.
type Options struct {
	// Registry is where everything is registered, and what is served. A new one
	// if nil.
	Registry *prometheus.Registry
	// Snapshots are those of the kernel's counters. Nil if there are none.
	Snapshots Snapshots
	// ServiceLimit and EndpointLimit are how many Services and endpoints may have
	// series of their own. 0 leaves only the sum of all.
	ServiceLimit, EndpointLimit int
	// Version is that of the program.
	Version string
	Logger  *slog.Logger
}

// Metrics counts, collects and answers.
type Metrics struct {
	o Options
	*synced
}

var _ control.SyncObserver = (*Metrics)(nil)

// New registers all metrics. The error says which were registered before.
func New(o Options) (*Metrics, error) {
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	m := &Metrics{o: o, synced: newSynced()}
	all := append(m.collectors(), newBuildInfo(o.Version), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if o.Snapshots != nil {
		all = append(all, newObserved(o.Snapshots, o.ServiceLimit, o.EndpointLimit))
	}
	var errs []error
	for _, collector := range all {
		errs = append(errs, o.Registry.Register(collector))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return m, nil
}

func newBuildInfo(version string) prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: own, Name: "build_info", Help: "Which program this is. Always 1.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version(), "arch": runtime.GOARCH},
	})
	info.Set(1)
	return info
}
