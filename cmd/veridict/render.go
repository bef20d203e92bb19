// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/veridict/veridict/control"
	"github.com/veridict/veridict/control/convert"
)

func newRenderCommand(level *slog.LevelVar) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "render --manifests DIR",
		Short: "Print what would be programmed as text for nft -f, without touching the kernel",
		Args:  noArguments,
	}
	manifests := addManifestFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		logger := newLogger(cmd, level)
		cfg, src, err := manifests.load(logger)
		if err != nil {
			return err
		}
		state, problems, err := control.Load(cmd.Context(), src, cfg)
		if err != nil {
			return err
		}
		logProblems(logger, problems)
		out := bufio.NewWriter(cmd.OutOrStdout())
		if err := renderState(out, cfg, logger, state); err != nil {
			return err
		}
		return out.Flush()
	}
	return cmd
}

func logProblems(logger *slog.Logger, problems []convert.Problem) {
	for _, problem := range problems {
		logger.Error("not served as written", "problem", problem.String())
	}
}
