// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/veridict/veridict/compare/demo"
	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/deploy"
)

// exitInterrupted is the shells' exit code for a program that SIGINT ended.
const exitInterrupted = 130

// demoFlags are the flags of the demo command.
type demoFlags struct {
	output      string
	connections int
}

// newDemoCommand returns the demo command. It runs the program a second time in
// namespaces of its own; an error with an ExitCode method says what the program
// should end with after the other one has reported what was wrong, so that
// nothing is left to print.
func newDemoCommand(level *slog.LevelVar) *cobra.Command {
	flags := demoFlags{output: "table", connections: demo.DefaultConnections}
	command := &cobra.Command{
		Use:   "demo",
		Short: "Show the proxy at work in network namespaces of its own, without a cluster",
		Long: `Builds a node, clients and endpoints out of network namespaces, serves the small
shop of deploy/examples there, opens thousands of real connections, also while a
Service is scaled, and shows how they spread over the endpoints. Clients, endpoints
and the kernel's probes count the connections, each for itself.

Needs root and nft. The network of the host is not touched, and all that the demo
makes vanishes with it. While it runs, commands such as top and services answer with
--socket ` + demoSocket + `. The exit status is 1 if a connection failed,
or if those who counted do not agree.`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			// What the proxy tells about each sync would tear the progress bar.
			level.Set(max(level.Level(), slog.LevelWarn))
			return runDemo(command, flags, newLogger(command, level))
		},
	}
	command.Flags().StringVarP(&flags.output, "output", "o", flags.output, "output `format`: table or json")
	command.Flags().IntVar(&flags.connections, "connections", flags.connections,
		"`number` of connections to open for the measurement, over all Services together")
	return command
}

func runDemo(command *cobra.Command, flags demoFlags, logger *slog.Logger) error {
	if err := flags.validate(); err != nil {
		return err
	}
	if err := testbed.Preflight("nft"); err != nil {
		return err
	}
	if !testbed.Isolated() {
		// Nobody else's if something is in it.
		defer func() { _ = os.Remove(filepath.Dir(demoSocket)) }()
		return testbed.Isolate(command.Context())
	}
	if err := testbed.EnterIsolation(filepath.Dir(demoSocket)); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(command.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	report, err := demo.Run(ctx, demo.Options{
		StartProxy: func(ctx context.Context, dir string) (demo.Proxy, error) {
			return startDemoProxy(ctx, logger, demoNode(), dir)
		},
		Manifests:   deploy.Examples(),
		Connections: flags.connections,
		Progress:    newProgress(command.ErrOrStderr()),
	})
	if err != nil && ctx.Err() != nil {
		fmt.Fprintln(command.ErrOrStderr(), "interrupted; all that the demo had made is gone")
		return &testbed.ExitError{Code: exitInterrupted}
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(command.ErrOrStderr())
	if err := flags.write(command.OutOrStdout(), report); err != nil {
		return err
	}
	return report.Err()
}

// demoNode are the flags of "veridict run" on the node of the demo. Changes are
// programmed as they come, so that scaling is quick.
func demoNode() map[string]string {
	return map[string]string{
		"hostname-override":        "demo-node",
		"cluster-cidr":             "10.244.0.0/16,fd00:10:244::/48",
		"iptables-min-sync-period": "10ms",
	}
}

func (f demoFlags) validate() error {
	if f.output != "table" && f.output != "json" {
		return usagef(`--output must be "table" or "json", not %q`, f.output)
	}
	if f.connections < 1 {
		return usagef("--connections must be at least 1, not %d", f.connections)
	}
	return nil
}

func (f demoFlags) write(w io.Writer, report *demo.Report) error {
	if f.output == "json" {
		return report.WriteJSON(w)
	}
	return report.WriteText(w)
}

// newProgress draws bars on a terminal, and writes plain lines elsewhere.
func newProgress(w io.Writer) demo.Progress {
	if file, ok := w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return demo.NewBars(w)
	}
	return demo.NewLines(w)
}
