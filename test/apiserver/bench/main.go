// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/veridict/veridict/compare/testbed"

	"github.com/veridict/veridict/test/apiserver/harness"
)

// options are the command line.
type options struct {
	sizes     string
	endpoints int
	rounds    int
	changes   int
	few       int
	memory    int
	programs  string
	output    string
}

func main() {
	var o options
	flag.StringVar(&o.sizes, "services", "1000,5000,10000", "numbers of Services, rising; empty to measure the memory of -memory only")
	flag.IntVar(&o.endpoints, "endpoints", 3, "endpoints of each Service")
	flag.IntVar(&o.rounds, "rounds", 3, "starts of each proxy; from 10,000 Services on kube-proxy has one")
	flag.IntVar(&o.changes, "changes", 200, "single changes at 5,000 Services")
	flag.IntVar(&o.few, "few", 20, "single changes at other numbers of Services")
	flag.IntVar(&o.memory, "memory", 45000, "Services with five endpoints each of which the memory is measured, 0 for none")
	flag.StringVar(&o.programs, "programs", "../../bin", "directory of kube-apiserver, kube-proxy and veridict")
	flag.StringVar(&o.output, "o", "table", "output: table or json")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, o))
}

func run(ctx context.Context, o options) int {
	if o.output != "table" && o.output != "json" {
		return fail(fmt.Errorf("unknown output %q: use table or json", o.output))
	}
	sizes, err := parseSizes(o.sizes)
	if err != nil {
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
	b := &bench{options: o}
	if err := b.measure(ctx, sizes); err != nil {
		return fail(err)
	}
	return fail(b.report.write(os.Stdout, o.output))
}

func parseSizes(text string) ([]int, error) {
	var sizes []int
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		size, err := strconv.Atoi(part)
		if err != nil || size < 1 || len(sizes) > 0 && size <= sizes[len(sizes)-1] {
			return nil, fmt.Errorf("-services %s: want rising numbers", text)
		}
		sizes = append(sizes, size)
	}
	return sizes, nil
}

// fail reports err, which may be nil, and returns the exit code.
func fail(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	return 1
}

// progress tells on standard error what is being done.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }

// bench holds what the experiments share.
type bench struct {
	options options
	dir     string
	plane   *harness.ControlPlane
	node    *harness.Node
	objects *harness.Objects
	report  report
}

func (b *bench) measure(ctx context.Context, sizes []int) error {
	var err error
	// In memory, private to this process and gone with it.
	if b.dir, err = os.MkdirTemp("/run", "veridict"); err != nil {
		return err
	}
	if b.options.memory > 0 {
		if err := b.measureMemory(ctx); err != nil {
			return err
		}
	}
	if len(sizes) == 0 {
		return nil
	}
	if err := b.setUp(ctx); err != nil {
		return err
	}
	defer b.plane.Close()
	before := 0
	for _, size := range sizes {
		progress("making %d Services", size)
		_, err := b.objects.CreateMany(ctx, before, size, b.options.endpoints, func(done int) {
			if done%1000 == 0 {
				progress("%d of %d", before+done, size)
			}
		})
		if err != nil {
			return err
		}
		before = size
		if err := b.compare(ctx, size); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) setUp(ctx context.Context) error {
	var err error
	if b.node, err = harness.NewNode(ctx); err != nil {
		return err
	}
	if b.plane, err = harness.NewControlPlane(ctx, b.dir, b.options.programs); err != nil {
		return err
	}
	client, err := b.plane.Client(harness.Admin)
	if err != nil {
		return err
	}
	if err := harness.CreateNode(ctx, client); err != nil {
		return err
	}
	b.objects, err = harness.NewObjects(ctx, client, "bench")
	return err
}

// start starts a proxy.
func (b *bench) start(name string) (*harness.Program, error) {
	if name == kubeProxy {
		return b.plane.KubeProxy()
	}
	return b.plane.Veridict(filepath.Join(b.options.programs, "veridict"), harness.Admin, harness.URL)
}
