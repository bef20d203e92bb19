// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
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
// namespaces of its own, where start gets to run; an error with an ExitCode
// method says what the program should end with after the other one has reported
// what was wrong, so that nothing is left to print.
func newDemoCommand(start demo.StartProxy) *cobra.Command {
	flags := demoFlags{output: "table", connections: demo.DefaultConnections}
	command := &cobra.Command{
		Use:   "demo",
		Short: "Show the proxy at work in network namespaces of its own, without a cluster",
		Long: `Builds a node, clients and endpoints out of network namespaces, serves the small
shop of deploy/examples there, opens thousands of real connections, also while a
Service is scaled, and shows how they spread over the endpoints.

Needs root and nft. The network of the host is not touched, and all that the demo
makes vanishes with it. The exit code is 1 if a connection failed.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			command.SilenceUsage = true
			return runDemo(command, flags, start)
		},
	}
	command.Flags().StringVarP(&flags.output, "output", "o", flags.output, `what to write to standard output: "table" or "json"`)
	command.Flags().IntVar(&flags.connections, "connections", flags.connections,
		"how many connections to open for the measurement, over all Services together")
	return command
}

func runDemo(command *cobra.Command, flags demoFlags, start demo.StartProxy) error {
	if err := flags.validate(); err != nil {
		return err
	}
	if err := testbed.Preflight("nft"); err != nil {
		return err
	}
	if !testbed.Isolated() {
		return testbed.Isolate(command.Context())
	}
	if err := testbed.EnterIsolation(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(command.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	report, err := demo.Run(ctx, demo.Options{
		StartProxy:  start,
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

func (f demoFlags) validate() error {
	if f.output != "table" && f.output != "json" {
		return fmt.Errorf(`--output must be "table" or "json", not %q`, f.output)
	}
	if f.connections < 1 {
		return fmt.Errorf("--connections must be at least 1, not %d", f.connections)
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
