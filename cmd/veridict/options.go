// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/veridict/veridict/control"
	"github.com/veridict/veridict/control/config"
	"github.com/veridict/veridict/control/source"
	"github.com/veridict/veridict/control/source/kube"
	"github.com/veridict/veridict/dataplane"
)

// manifestOptions are the flags of all commands that read objects.
type manifestOptions struct {
	dir    string
	config *config.Flags
}

func addManifestFlags(cmd *cobra.Command) *manifestOptions {
	o := &manifestOptions{config: config.AddFlags(cmd.Flags())}
	cmd.Flags().StringVar(&o.dir, "manifests", "", "`directory` of Services, EndpointSlices, Nodes and ServiceCIDRs as YAML or JSON, instead of an API server")
	return o
}

// load returns the configuration and the log that it asks for, to which it writes
// warnings.
func (o *manifestOptions) load(cmd *cobra.Command, level *slog.LevelVar) (config.Config, *slog.Logger, error) {
	cfg, warnings, err := o.config.Load(os.Hostname)
	if err != nil {
		return config.Config{}, nil, asUsage(err)
	}
	logger := newConfiguredLogger(cmd, level, cfg.Log)
	for _, warning := range warnings {
		logger.Warn("configuration", "warning", warning)
	}
	return cfg, logger, nil
}

// source returns where objects come from.
func (o *manifestOptions) source(cfg config.Config, logger *slog.Logger) (control.Source, *kube.Clientset, error) {
	tuneMemory()
	if o.dir != "" {
		return source.NewDir(source.Options{Dir: o.dir, NodeName: cfg.NodeName, Logger: logger}), nil, nil
	}
	client, err := connect(cfg.Client)
	if err != nil {
		return nil, nil, err
	}
	return kube.New(kube.Options{Client: client, NodeName: cfg.NodeName, Logger: logger}), client, nil
}

func connect(c config.Client) (*kube.Clientset, error) {
	client, err := kube.Connect(kube.Connection{
		Kubeconfig: c.Kubeconfig, Master: c.Master, ContentType: c.ContentType, QPS: c.QPS, Burst: c.Burst,
		UserAgent: "veridict/" + version(),
	})
	if errors.Is(err, kube.ErrNoServer) {
		return nil, usagef("%w: give --kubeconfig or --manifests; only in a pod neither is needed", err)
	}
	return client, err
}

// loadState returns the configuration, the log and what the objects ask for now. It
// writes warnings and problems to the log.
func (o *manifestOptions) loadState(cmd *cobra.Command, level *slog.LevelVar) (config.Config, *slog.Logger, dataplane.State, error) {
	cfg, logger, err := o.load(cmd, level)
	if err != nil {
		return config.Config{}, nil, dataplane.State{}, err
	}
	state, err := o.stateOf(cmd.Context(), cfg, logger)
	return cfg, logger, state, err
}

func (o *manifestOptions) stateOf(ctx context.Context, cfg config.Config, logger *slog.Logger) (dataplane.State, error) {
	src, _, err := o.source(cfg, logger)
	if err != nil {
		return dataplane.State{}, err
	}
	addrs, err := nodeHost{}.Addresses()
	if err != nil {
		return dataplane.State{}, err
	}
	state, problems, err := control.Load(ctx, src, cfg, addrs)
	if err != nil {
		return dataplane.State{}, err
	}
	for _, problem := range problems {
		control.LogProblem(logger, problem)
	}
	return state, nil
}

// garbagePercent makes the heap grow less between collections: reading a large
// directory leaves much more garbage than objects. At 20,000 Services 60 instead of
// 30 takes 10 MiB more and saves a fourth of the time that reading takes.
const garbagePercent = 30

func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
}

// asUsage marks mistakes in flags and in the file that they name.
func asUsage(err error) error {
	_, invalid := errors.AsType[*config.Invalid](err)
	if invalid || errors.Is(err, fs.ErrNotExist) {
		return usageError{err}
	}
	return err
}

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// addOutputFlag adds -o with the formats that the command knows.
func addOutputFlag(cmd *cobra.Command, formats ...string) *outputFormat {
	o := &outputFormat{formats: formats}
	cmd.Flags().VarP(o, "output", "o", "output `format`: "+strings.Join(formats, " or "))
	completeValues(cmd, "output", formats...)
	return o
}

// completeValues completes the values of a flag that has few.
func completeValues(cmd *cobra.Command, flag string, values ...string) {
	// It fails for flags that do not exist or are completed already, which tests see.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// outputFormat is a flag with few values; empty is text for people.
type outputFormat struct {
	formats []string
	value   string
}

// String is part of pflag.Value.
func (o *outputFormat) String() string { return o.value }

// Type is part of pflag.Value.
func (o *outputFormat) Type() string { return "format" }

// Set is part of pflag.Value.
func (o *outputFormat) Set(value string) error {
	if !slices.Contains(o.formats, value) {
		return fmt.Errorf("want one of %v", o.formats)
	}
	o.value = value
	return nil
}
