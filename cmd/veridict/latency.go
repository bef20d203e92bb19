// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/veridict/veridict/control/api"
	"github.com/veridict/veridict/control/observe"
)

func newLatencyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "latency",
		Short: "Show how long the kernel takes to translate first packets",
		Long: `Show how long the kernel takes to translate first packets: all NAT rules of the
node between the two probes, whoever made them. Missed are those that were not
translated, foreign those that something else translated.

Quantiles are estimates from buckets a factor of two wide.`,
		Args: noArguments,
	}
	o := addAgentFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client := api.NewClient(o.socket)
		defer client.Close()
		list, err := client.Latency(cmd.Context())
		if err != nil {
			return err
		}
		return o.print(cmd.OutOrStdout(), list, func(w io.Writer) { writeLatency(w, list, o.wide(), unicodeOutput()) })
	}
	return cmd
}

func writeLatency(w io.Writer, list *api.LatencyList, wide, unicode bool) {
	t := newTable(w, "FAMILY", "HOOK", "OUTCOME", "PACKETS", "MEAN", "P50", "P90", "P99")
	for i := range list.Items {
		l := &list.Items[i]
		t.row(fmt.Sprintf("IPv%d", l.Family), string(l.Hook), string(l.Outcome), fmt.Sprint(l.Count),
			seconds(l.Mean), seconds(l.P50), seconds(l.P90), seconds(l.P99))
	}
	t.flush()
	if len(list.Items) == 0 {
		fmt.Fprintln(w, "nothing was timed: see the probes in veridict status")
		return
	}
	if wide {
		for i := range list.Items {
			writeHistogram(w, &list.Items[i], unicode)
		}
		return
	}
	most := &list.Items[0]
	for i := range list.Items {
		if list.Items[i].Count > most.Count {
			most = &list.Items[i]
		}
	}
	writeHistogram(w, most, unicode)
}

// histogramWidth is that of the longest bar.
const histogramWidth = 50

func writeHistogram(w io.Writer, l *api.Latency, unicode bool) {
	first, last, most := -1, 0, uint64(0)
	for i, n := range l.Counts {
		if n > 0 {
			if first < 0 {
				first = i
			}
			last, most = i, max(most, n)
		}
	}
	if first < 0 {
		return
	}
	fmt.Fprintf(w, "\nIPv%d, %s, %s\n", l.Family, l.Hook, l.Outcome)
	t := newTable(w, "BELOW", "PACKETS", "")
	for i := first; i <= last; i++ {
		below := seconds(float64(uint64(64)<<i) * 1e-9)
		if i == observe.HistogramBuckets-1 {
			below = "more"
		}
		t.row(below, fmt.Sprint(l.Counts[i]),
			bar(float64(l.Counts[i])/float64(most), histogramWidth, unicode))
	}
	t.flush()
}
