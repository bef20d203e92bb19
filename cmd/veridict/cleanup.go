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
		Long: `Remove everything of veridict from the kernel: rules, BPF programs, counters.

With --kube-proxy, what kube-proxy has left behind is removed instead: its tables of
nftables mode, and of iptables mode the rules of iptables-nft. Run it when veridict
serves. Rules of iptables-legacy and ipvs are removed by "kube-proxy --cleanup".
Connections go on.`,
		Args: noArguments,
	}
	pins := cmd.Flags().String("bpf-pin-path", "", "`directory` that veridict run was told to pin BPF maps and links in")
	kubeProxy := cmd.Flags().Bool("kube-proxy", false, "remove what kube-proxy has left behind instead")
	wait := cmd.Flags().Bool("wait", false, "do nothing more until a signal comes, as a Pod of a DaemonSet must")
	cmd.MarkFlagsMutuallyExclusive("kube-proxy", "bpf-pin-path")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, logger := cmd.Context(), newLogger(cmd, level)
		var err error
		if *kubeProxy {
			err = cleanUpKubeProxy(ctx, logger)
		} else {
			err = cleanUpKernel(ctx, *pins, logger)
		}
		if err == nil && *wait {
			logger.Info("all is removed; waiting for a signal")
			<-ctx.Done()
		}
		return err
	}
	return cmd
}
