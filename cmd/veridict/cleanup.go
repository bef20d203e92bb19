// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"

	"github.com/spf13/cobra"
)

func newCleanupCommand(level *slog.LevelVar) *cobra.Command {
	return &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything of veridict from the kernel",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cleanUpKernel(cmd.Context(), newLogger(cmd, level))
		},
	}
}
