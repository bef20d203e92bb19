// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/veridict/veridict/compare/testbed"
)

// options are the command line.
type options struct {
	services  int
	endpoints int
	small     int
	single    int
	rounds    int
	changes   int
	veridict  string
	output    string
	only      string
}

func main() {
	o := options{}
	flag.IntVar(&o.services, "services", 20000, "number of Services of the large cluster")
	flag.IntVar(&o.endpoints, "endpoints", 5, "endpoints of each Service")
	flag.IntVar(&o.small, "small", 200, "number of Services of the small cluster")
	flag.IntVar(&o.single, "single", 45000, "number of Services with one endpoint, as in the published figures")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds; figures are medians over them")
	flag.IntVar(&o.changes, "changes", 1000, "endpoint changes in each round")
	flag.StringVar(&o.veridict, "veridict", "bin/veridict", "the program to measure")
	flag.StringVar(&o.output, "o", "table", "output: table or json")
	flag.StringVar(&o.only, "only", "", "part of the names of the experiments to run: cold start, affinity, changes and so on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, o))
}

func run(ctx context.Context, o options) int {
	if o.output != "table" && o.output != "json" {
		return fail(fmt.Errorf("unknown output %q: use table or json", o.output))
	}
	if err := testbed.Preflight("nft"); err != nil {
		return fail(err)
	}
	if !testbed.Isolated() {
		err := testbed.Isolate(ctx)
		if exit, ok := errors.AsType[*testbed.ExitError](err); ok {
			return exit.Code
		}
		return fail(err)
	}
	if err := testbed.EnterIsolation(); err != nil {
		return fail(err)
	}
	report, err := measure(ctx, o)
	if err != nil {
		return fail(err)
	}
	return fail(report.write(os.Stdout, o.output))
}

// fail reports err, which may be nil, and returns the exit code.
func fail(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	return 1
}

// measure runs all experiments.
func measure(ctx context.Context, o options) (*report, error) {
	dir, err := os.MkdirTemp("", "veridict-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b := &bench{options: o, dir: dir, log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	r := &report{Started: time.Now().UTC(), Rounds: o.rounds}
	for _, step := range b.steps() {
		if !strings.Contains(step.name, b.options.only) {
			continue
		}
		if err := step.run(ctx, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// step is one experiment.
type step struct {
	name string
	run  func(context.Context, *report) error
}

func (b *bench) steps() []step {
	return []step{
		{"cold start", b.coldStart},
		{"single endpoints", b.singleEndpoints},
		{"affinity cold start", b.affinityColdStart},
		{"affinity first packets", b.firstPackets},
		{"affinity sweep", b.sweepPins},
		{"localhost NodePorts", b.localhostNodePorts},
		{"structure", b.structure},
		{"changes", b.changes},
		{"new chains", b.newChains},
		{"restart", b.restart},
		{"probes, cost", b.probeCost},
		{"probes, loss", b.probeLoss},
	}
}

// bench holds what the experiments share.
type bench struct {
	options options
	dir     string
	log     *slog.Logger
}

// progress tells on standard error what is being done.
func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}
