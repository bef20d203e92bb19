// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"

	"github.com/spf13/cobra"
)

func newCleanupCommand(level *slog.LevelVar) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything of veridict from the kernel",
		Args:  noArguments,
	}
	pins := cmd.Flags().String("bpf-pin-path", "", "`directory` that veridict run was told to pin BPF maps and links in")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return cleanUpKernel(cmd.Context(), *pins, newLogger(cmd, level))
	}
	return cmd
}
