// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"

	"github.com/spf13/cobra"

	"github.com/veridict/veridict/control/preflight"
)

// errUnfit ends check when the node cannot run veridict, which is its output.
var errUnfit = errors.New("this node is not fit, see above")

func newCheckCommand(level *slog.LevelVar) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether this node can run veridict, and what is in its way",
		Long: `Say whether this node can run veridict, and what is in its way: kernel, nftables,
permissions, settings, other programs. Everything is looked at, also after a
failure, and each line that is not ok says what to do. Nothing is changed. With
--kubeconfig or --master the API server is asked, too; flags are those of run.

The exit status is 1 if there is a failure, with --strict also if there is a
warning.`,
		Args: noArguments,
	}
	objects := addManifestFlags(cmd)
	output := &agentOptions{output: addOutputFlag(cmd, "table", "wide", "json", "yaml")}
	strict := cmd.Flags().Bool("strict", false, "take warnings for failures")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, logger, err := objects.load(cmd, level)
		if err != nil {
			return err
		}
		facts, err := gatherFacts(cmd.Context(), cfg, logger)
		if err != nil {
			return err
		}
		report := preflight.Run(facts)
		if err := output.print(cmd.OutOrStdout(), report, func(w io.Writer) { writeReport(w, &report, output.wide()) }); err != nil {
			return err
		}
		if report.Failures > 0 || *strict && report.Warnings > 0 {
			return errUnfit
		}
		return nil
	}
	return cmd
}

// checkDetails is what the other columns leave of a line.
const checkDetails = columns - len("other proxies  failure  ")

func writeReport(w io.Writer, report *preflight.Report, wide bool) {
	t := &statusTable{table: newTable(w, "CHECK", "STATE", "DETAILS"), width: checkDetails}
	if wide {
		t.width = math.MaxInt
	}
	for _, result := range report.Checks {
		t.part(result.Name, string(result.Status), "%s", result.Detail)
		if result.Hint != "" {
			t.part("", "", "-> %s", result.Hint)
		}
	}
	t.flush()
	fmt.Fprintf(w, "\n%d failures, %d warnings\n", report.Failures, report.Warnings)
}
