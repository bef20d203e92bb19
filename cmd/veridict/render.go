// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"log/slog"

	"github.com/spf13/cobra"
)

func newRenderCommand(level *slog.LevelVar) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "render",
		Short: "Print what would be programmed as text for nft -f, without touching the kernel",
		Args:  noArguments,
	}
	manifests := addManifestFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, logger, state, err := manifests.loadState(cmd, level)
		if err != nil {
			return err
		}
		out := bufio.NewWriter(cmd.OutOrStdout())
		if err := renderState(out, cfg, logger, state); err != nil {
			return err
		}
		return out.Flush()
	}
	return cmd
}
