// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/veridict/veridict/control"
	"github.com/veridict/veridict/control/api"
	"github.com/veridict/veridict/control/config"
	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/events"
	"github.com/veridict/veridict/control/health"
	"github.com/veridict/veridict/control/metrics"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/control/serve"
	"github.com/veridict/veridict/control/source/kube"
)

func newRunCommand(level *slog.LevelVar) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Program the Services of a cluster, or of a directory of manifests, and follow changes",
		Long: `Program the Services of a cluster, or of a directory of manifests, and follow changes.

The objects are those of the API server that --kubeconfig names, in a pod those of
its own cluster, or with --manifests those of a directory.

The rules stay in place when veridict ends; see cleanup.

With --once -o json one object is printed. In it, services counts one for each
port and IP family of a Service, endpoints counts an endpoint once for each of
these that has it, programSeconds is the time from the state in memory to the
state committed, and rejected lists everything that is not served as written. The
exit status is 0 even so: the rest is served.`,
		Args: noArguments,
	}
	manifests := addManifestFlags(cmd)
	output := addOutputFlag(cmd, "json")
	socket := api.DefaultPath
	addSocketFlag(cmd, &socket)
	once := cmd.Flags().Bool("once", false, "end as soon as everything is programmed")
	initOnly := cmd.Flags().Bool("init-only", false, "set up what needs a privileged process, and end")
	cmd.MarkFlagsMutuallyExclusive("once", "init-only")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if output.value != "" && !*once {
			return usagef("-o needs --once")
		}
		cfg, logger, err := manifests.load(cmd, level)
		if err != nil {
			return err
		}
		if *initOnly {
			return initialise(cfg, logger)
		}
		src, client, err := manifests.source(cfg, logger)
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		kernel, err := openKernel(ctx, cfg, logger)
		if err != nil {
			return err
		}
		defer kernel.close()
		setConntrack(cfg, logger)
		if *once {
			err := runOnce(ctx, cmd.OutOrStdout(), output.value, control.Options{
				Config: cfg, Source: src, Syncer: kernel, Logger: logger, Host: nodeHost{},
			})
			return errors.Join(err, kernel.sweepPins(ctx))
		}
		bridgeKlog(logger)
		setOOMScore(cfg, logger)
		agent, err := newAgent(cfg, src, kernel, socket, logger)
		if err != nil {
			return err
		}
		agent.configz = manifests.config.Effective()
		agent.client = client
		return agent.run(ctx)
	}
	return cmd
}

// unhealthySyncs is after how many sync periods a waiting change is unhealthy.
const unhealthySyncs = 2

func newProxyHealth(cfg config.Config) *health.Proxy {
	return health.NewProxy(unhealthySyncs*cfg.SyncPeriod, nil)
}

func newHealthServer(proxy *health.Proxy, logger *slog.Logger) *health.Server {
	return health.NewServer(health.Options{Healthy: proxy.Healthy, Logger: logger})
}

// agent is what a running proxy is made of.
type agent struct {
	cfg      config.Config
	source   control.Source
	kernel   *kernel
	socket   string
	logger   *slog.Logger
	started  time.Time
	observer *observe.Observer
	// configz is the configuration in effect as JSON.
	configz []byte
	// client is nil without an API server.
	client *kube.Clientset
	// closeProbes lets go of them; pinned ones go on counting.
	closeProbes func()
}

// newAgent attaches the probes. The caller calls run.
func newAgent(cfg config.Config, src control.Source, kernel *kernel, socket string, logger *slog.Logger) (*agent, error) {
	observer, closeProbes, err := newObserver(cfg.Observe, kernel, logger)
	if err != nil {
		return nil, err
	}
	return &agent{
		cfg: cfg, source: src, kernel: kernel, socket: socket, logger: logger, started: time.Now(),
		observer: observer, closeProbes: closeProbes,
	}, nil
}

// run programs until a signal comes, which is no error.
func (a *agent) run(ctx context.Context) error {
	defer a.closeProbes()
	drift := make(chan struct{}, 1)
	proxy := newProxyHealth(a.cfg)
	checks := newHealthServer(proxy, a.logger)
	measured, err := a.newMetrics()
	if err != nil {
		return err
	}
	options := control.Options{
		Config: a.cfg, Source: a.source, Syncer: a.observer, Logger: a.logger, Drift: drift, Host: nodeHost{},
		Health: proxy, Checks: checks, Observer: measured,
	}
	group, groupCtx := errgroup.WithContext(ctx)
	if a.client != nil {
		recorder := events.New(events.Options{Client: a.client, NodeName: a.cfg.NodeName, Logger: a.logger})
		options.Events = recorder
		group.Go(func() error { return recorder.Run(groupCtx) })
	}
	controller := control.New(options)
	server := api.NewServer(api.Options{
		Path: a.socket, Layout: string(a.cfg.Layout), Facts: controller.Facts, Healthy: proxy.Healthy,
		Snapshots: a.observer, Logger: a.logger,
		Agent: api.Agent{Version: version(), Node: a.cfg.NodeName, PID: os.Getpid(), Started: a.started},
	})
	group.Go(func() error { return a.kernel.watch(groupCtx, drift) })
	group.Go(func() error { return a.kernel.keepPins(groupCtx) })
	group.Go(func() error { return checks.Run(groupCtx) })
	group.Go(func() error { return a.observer.Run(groupCtx) })
	group.Go(func() error { return serveAPI(groupCtx, server, a.logger) })
	group.Go(func() error { return serve.Run(groupCtx, a.pages(measured)) })
	group.Go(func() error { return serve.Run(groupCtx, a.healthPages(proxy, measured)) })
	group.Go(func() error { return controller.Run(groupCtx) })
	err = group.Wait()
	if ctx.Err() != nil {
		a.logger.Info("ending, the rules stay in place")
		return nil
	}
	if err == nil {
		return errors.New("ended without being told to")
	}
	return err
}

func (a *agent) newMetrics() (*metrics.Metrics, error) {
	cfg := a.cfg.Metrics
	return metrics.New(metrics.Options{
		Snapshots: a.observer, ServiceLimit: cfg.ServiceLimit, EndpointLimit: cfg.EndpointLimit, Version: version(), Logger: a.logger,
	})
}

// pages are those of metricsBindAddress.
func (a *agent) pages(measured *metrics.Metrics) serve.Options {
	pages := serve.Pages{Metrics: measured.Handler(), Config: a.configz, Profiling: a.cfg.Metrics.Profiling}
	return serve.Options{
		Name: "metrics", Address: a.cfg.Metrics.Address, HardFail: a.cfg.Metrics.HardFail, Handler: pages.Handler(), Logger: a.logger,
	}
}

// healthPages are those of healthzBindAddress.
func (a *agent) healthPages(proxy *health.Proxy, measured *metrics.Metrics) serve.Options {
	return serve.Options{
		Name: "healthz", Address: a.cfg.Healthz, HardFail: a.cfg.Metrics.HardFail, Handler: proxy.Handler(measured.Answered),
		Logger: a.logger,
	}
}

// serveAPI does without the commands where they cannot be served: Services are more
// important.
func serveAPI(ctx context.Context, server *api.Server, logger *slog.Logger) error {
	err := server.Run(ctx)
	if ctx.Err() != nil {
		return err
	}
	logger.Error("commands such as veridict status are not answered", "err", err)
	<-ctx.Done()
	return context.Cause(ctx)
}

// onceReport is what run --once prints with -o json.
type onceReport struct {
	// Services counts the ServicePorts programmed: one for each port and IP
	// family of a Service.
	Services int `json:"services"`
	// Endpoints counts an endpoint once for each ServicePort that has it.
	Endpoints int `json:"endpoints"`
	Elements  int `json:"elements"`
	Chains    int `json:"chains"`
	Maps      int `json:"maps"`
	// ProgramSeconds is from the state in memory to the state committed.
	ProgramSeconds float64 `json:"programSeconds"`
	// PeakRSSBytes is the peak resident memory of the process.
	PeakRSSBytes int64 `json:"peakRSSBytes"`
	// Rejected is everything that is not served as it was written.
	Rejected []convert.Problem `json:"rejected"`
}

func runOnce(ctx context.Context, w io.Writer, format string, options control.Options) error {
	result, err := control.New(options).RunOnce(ctx)
	if err != nil {
		return err
	}
	peak, err := peakRSS()
	if err != nil {
		return err
	}
	programmed := result.Report.Programmed
	report := onceReport{
		Services: programmed.ServicePorts, Endpoints: programmed.Endpoints, Elements: programmed.Elements,
		Chains: programmed.Chains, Maps: programmed.Maps,
		ProgramSeconds: result.Took.Seconds(), PeakRSSBytes: peak,
		Rejected: append([]convert.Problem{}, result.Problems...),
	}
	if format == "json" {
		return writeJSON(w, report)
	}
	_, err = fmt.Fprintf(w, "%d ServicePorts with %d endpoints programmed in %s: %d elements, %d chains, %d maps; %d problems\n",
		report.Services, report.Endpoints, result.Took.Round(time.Millisecond/10), report.Elements, report.Chains,
		report.Maps, len(report.Rejected))
	return err
}

// peakRSS returns the peak resident memory of this process in bytes. getrusage
// would count that of the parent, too, from before exec.
func peakRSS() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("read resource usage: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kib int64
			if _, err := fmt.Sscanf(value, "%d kB", &kib); err != nil {
				return 0, fmt.Errorf("read resource usage %q: %w", line, err)
			}
			return kib * 1024, nil
		}
	}
	return 0, errors.New("read resource usage: no VmHWM in /proc/self/status")
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}
