// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/control/config"
)

func newRootCommand() *cobra.Command {
	level := new(slog.LevelVar)
	verbosity := 0
	root := &cobra.Command{
		Use:           "veridict",
		Short:         "A Kubernetes Service proxy that dispatches with nftables verdict maps",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArguments,
		PersistentPreRun: func(*cobra.Command, []string) {
			if verbosity >= config.DebugVerbosity {
				level.Set(slog.LevelDebug)
			}
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().IntVarP(&verbosity, "v", "v", 0, "log `level` of Kubernetes: from 4 on there are details")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(
		newRunCommand(level),
		newRenderCommand(level),
		newVerifyCommand(level),
		newCheckCommand(level),
		newExplainCommand(),
		newStatusCommand(),
		newServicesCommand(),
		newBucketsCommand(),
		newLatencyCommand(),
		newTopCommand(),
		newCleanupCommand(level),
		newDemoCommand(level),
		newVersionCommand(),
	)
	return root
}

// newLogger logs to the standard error of the command.
func newLogger(cmd *cobra.Command, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
}

// newConfiguredLogger logs in the format and with the details that are asked for.
func newConfiguredLogger(cmd *cobra.Command, level *slog.LevelVar, log config.Log) *slog.Logger {
	if log.Verbosity >= config.DebugVerbosity {
		level.Set(slog.LevelDebug)
	}
	if log.JSON {
		return slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
	}
	return newLogger(cmd, level)
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		return usagef("unknown command %q, see veridict help", args[0])
	}
	return usagef("unexpected argument %q", args[0])
}

// usageError is a mistake on the command line or in the configuration.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// errDrift ends verify when there are differences, which are its output.
var errDrift = errors.New("the kernel differs from the objects")

// isQuiet says whether the error was reported already: by verify, or by the
// process that ran in our place.
func isQuiet(err error) bool {
	_, ended := errors.AsType[*testbed.ExitError](err)
	return ended || errors.Is(err, errDrift) || errors.Is(err, errUnwell) || errors.Is(err, errUnfit)
}

// exitCode passes on the code of a process that ran in our place. That of a
// helper such as nft is no code of ours.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if ended, ok := errors.AsType[*testbed.ExitError](err); ok {
		return ended.Code
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return 2
	}
	return 1
}

func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
