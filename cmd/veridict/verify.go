// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"
)

func newVerifyCommand(level *slog.LevelVar) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare the kernel with the objects of a cluster or directory; exit 1 on any difference",
		Args:  noArguments,
	}
	manifests := addManifestFlags(cmd)
	output := addOutputFlag(cmd, "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, logger, state, err := manifests.loadState(cmd, level)
		if err != nil {
			return err
		}
		differences, err := verifyState(cmd.Context(), cfg, logger, state)
		if err != nil {
			return err
		}
		if err := writeDifferences(cmd.OutOrStdout(), output.value, differences); err != nil {
			return err
		}
		if len(differences) > 0 {
			return errDrift
		}
		return nil
	}
	return cmd
}

// writeDifferences prints one difference a line, or an object for programs.
func writeDifferences(w io.Writer, format string, differences []difference) error {
	if format == "json" {
		return writeJSON(w, struct {
			Differences []difference `json:"differences"`
		}{append([]difference{}, differences...)})
	}
	for _, difference := range differences {
		if _, err := fmt.Fprintln(w, difference); err != nil {
			return err
		}
	}
	if len(differences) == 0 {
		_, err := fmt.Fprintln(w, "the kernel is as the objects ask")
		return err
	}
	return nil
}
