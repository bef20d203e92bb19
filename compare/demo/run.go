// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

const (
	// DefaultConnections takes some five seconds on two cores.
	DefaultConnections = 40_000
	// DefaultStepConnections take a quarter of a second.
	DefaultStepConnections = 2000
	// scaledService is the Service that is scaled, scaledFile its slice.
	scaledService, scaledFile = "catalog", "catalog-endpoints.yaml"
)

// StartProxy starts a proxy that serves the manifests in a directory, and
// follows changes there until it is closed. It programs the network namespace
// of the process, and returns when all that is in the directory is programmed.
type StartProxy func(ctx context.Context, manifestsDir string) (Proxy, error)

// Proxy is a running proxy.
type Proxy interface {
	// Counts says what is programmed now.
	Counts(ctx context.Context) (dataplane.Counts, error)
	// Observed reads what the kernel has counted up to now.
	Observed() *observe.Snapshot
	// Watch is the command that shows the proxy at work, to be run in another
	// terminal; empty if there is none.
	Watch() string
	// Close stops it. What it has programmed may stay.
	Close() error
}

// Options of [Run]. The numbers may be 0, all else is required.
type Options struct {
	// StartProxy starts the proxy to be shown.
	StartProxy StartProxy
	// Manifests are the files of the shop: those of deploy/examples, or some
	// like them.
	Manifests fs.FS
	// Connections is how many the measurement opens, in turns to all
	// ServicePorts. 0 means DefaultConnections.
	Connections int
	// StepConnections is the least number of connections opened during each
	// step of scaling: what the proxy does a while after a change is under
	// load, too. 0 means DefaultStepConnections.
	StepConnections int
	// Progress shows how far the run is.
	Progress Progress
}

// run is the state of one run.
type run struct {
	Options
	shop    *shop
	scaler  *scaler
	cluster *cluster
	proxy   Proxy
	dir     string
	// counted is what had been counted when the current phase began.
	counted *census
	report  Report
}

// Run does the whole demo and returns what it found. Failed connections are in
// the report; errors are about everything else, and about ctx being done.
func Run(ctx context.Context, options Options) (report *Report, err error) {
	if !testbed.Isolated() {
		return nil, errors.New("demo: this process would change the host's network: it was not started by testbed.Isolate")
	}
	if options.Connections == 0 {
		options.Connections = DefaultConnections
	}
	if options.StepConnections == 0 {
		options.StepConnections = DefaultStepConnections
	}
	r := &run{Options: options}
	defer func() {
		options.Progress.Close()
		if closeErr := r.close(); err == nil && closeErr != nil {
			report, err = nil, fmt.Errorf("demo: clean up: %w", closeErr)
		}
	}()
	for _, phase := range []func(context.Context) error{r.build, r.program, r.measure, r.scale, r.refuse, r.count} {
		if err := phase(ctx); err != nil {
			return nil, fmt.Errorf("demo: %w", err)
		}
	}
	return &r.report, nil
}

// build reads the manifests and makes the pods, including those that the scaled
// Service will need.
func (r *run) build(ctx context.Context) error {
	start := time.Now()
	var err error
	if r.shop, err = loadShop(r.Manifests); err != nil {
		return err
	}
	if r.scaler, err = newScaler(r.Manifests, scaledFile, largestScale()); err != nil {
		return err
	}
	spare, err := r.scaler.addrs(largestScale())
	if err != nil {
		return err
	}
	for i, addr := range spare {
		r.shop.pods[r.scaler.endpoints[i].TargetRef.Name] = []listener{{dataplane.TCP, addr}}
	}
	r.Progress.Begin("network", clientCount+len(r.shop.pods))
	if r.cluster, err = buildCluster(ctx, r.shop.pods, r.Progress.Advance); err != nil {
		return err
	}
	r.report.Clients, r.report.Pods = clientCount, r.cluster.pods
	r.Progress.End(fmt.Sprintf("a node, %d clients and %d endpoint pods, each a namespace (%s)",
		clientCount, r.cluster.pods-clientCount, since(start)))
	return nil
}

// program starts the proxy on a copy of the manifests.
func (r *run) program(ctx context.Context) error {
	start := time.Now()
	r.Progress.Begin("proxy", 1)
	var err error
	if r.dir, err = copyManifests(r.Manifests); err != nil {
		return err
	}
	if r.proxy, err = r.StartProxy(ctx, r.dir); err != nil {
		return fmt.Errorf("start the proxy: %w", err)
	}
	if err := r.forgetFlowsSoon(); err != nil {
		return err
	}
	// From here on draws are counted for the verdicts.
	if r.counted, err = r.takeCensus(); err != nil {
		return err
	}
	r.report.Probes = r.counted.kernel.Probes
	r.Progress.Advance()
	r.Progress.End(fmt.Sprintf("%d ServicePorts programmed (%s)", len(r.shop.servicePorts), since(start)))
	if watch := r.proxy.Watch(); watch != "" {
		r.Progress.Note("watch it from another terminal, while it runs:\n  " + watch)
	}
	return nil
}

// forgetFlowsSoon makes the node forget TCP flows a second after their end, so
// that the table of connections does not fill up on small machines, and UDP
// flows before their source ports come up again, in a flow that has made its
// choice. But not before the client gives up: a late answer of a forgotten
// flow would reach it from a foreign address. The settings exist as soon as
// something tracks connections.
func (r *run) forgetFlowsSoon() error {
	err := r.cluster.node.SetSysctls(testbed.Sysctls{
		"net/netfilter/nf_conntrack_udp_timeout":       strconv.Itoa(1 + int(testbed.DefaultTimeout.Seconds())),
		"net/netfilter/nf_conntrack_tcp_timeout_close": "1",
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// refuse connects to the ServicePorts without endpoints.
func (r *run) refuse(ctx context.Context) error {
	for _, port := range r.shop.servicePorts {
		if len(port.endpoints) > 0 {
			continue
		}
		outcome := ""
		err := r.cluster.clients[0].Do(func() error {
			asking, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			_, err := testbed.Ask(asking, port.vip)
			outcome = testbed.Reason(err)
			return ctx.Err()
		})
		if err != nil {
			return err
		}
		if outcome == "" {
			outcome = "answered"
		}
		r.report.Refusals = append(r.report.Refusals, Refusal{Service: port.title(), VIP: port.vip, Outcome: outcome})
	}
	return nil
}

// count asks the proxy for its sizes.
func (r *run) count(ctx context.Context) error {
	counts, err := r.proxy.Counts(ctx)
	if err != nil {
		return fmt.Errorf("count what is programmed: %w", err)
	}
	r.report.Programmed = counts
	return nil
}

// close removes everything, in the reverse order.
func (r *run) close() error {
	var errs []error
	if r.proxy != nil {
		errs = append(errs, r.proxy.Close())
	}
	if r.cluster != nil {
		errs = append(errs, r.cluster.close())
	}
	if r.dir != "" {
		errs = append(errs, os.RemoveAll(r.dir))
	}
	return errors.Join(errs...)
}

func since(start time.Time) string { return fmt.Sprintf("%.1f s", time.Since(start).Seconds()) }
