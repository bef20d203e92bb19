// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/veridict/veridict/control/api"
)

func newServicesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "services",
		Aliases: []string{"service", "svc"},
		Short:   "List Services with how often they were selected and how evenly",
		Long: `List Services with how often they were selected and how evenly, since the probes
were attached. Each port and IP family of a Service is one line.

The verdict is even or uneven; too few, if so few draws say nothing; or
untested: one endpoint, or source-hash. veridict buckets shows what it is made
of.`,
		Args: noArguments,
	}
	o := addAgentFlags(cmd)
	var q api.Query
	cmd.Flags().StringVarP(&q.Namespace, "namespace", "n", "", "only Services of the `namespace`")
	_ = cmd.RegisterFlagCompletionFunc("namespace", completeNamespaces(&o.socket))
	cmd.Flags().StringVar(&q.Sort, "sort", api.ByName, "`order`: name, selections or evidence (the least even first)")
	completeValues(cmd, "sort", api.ByName, api.BySelections, api.ByEvidence)
	cmd.Flags().IntVar(&q.Limit, "limit", 0, "at most so many `lines`, 0 for all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !slices.Contains([]string{api.ByName, api.BySelections, api.ByEvidence}, q.Sort) {
			return usagef("--sort %q is not name, selections or evidence", q.Sort)
		}
		if q.Limit < 0 {
			return usagef("--limit %d is less than 0", q.Limit)
		}
		client := api.NewClient(o.socket)
		defer client.Close()
		list, err := client.Services(cmd.Context(), q)
		if err != nil {
			return err
		}
		return o.print(cmd.OutOrStdout(), list, func(w io.Writer) { writeServices(w, list, o.wide()) })
	}
	return cmd
}

func writeServices(w io.Writer, list *api.ServiceList, wide bool) {
	header := []string{"SERVICE", "PROTOCOL", "ENDPOINTS", "SELECTIONS", "VERDICT"}
	if wide {
		header = append(header, "EVIDENCE", "PINNED", "MISSED", "ALGORITHM", "AFFINITY", "VIPS")
	}
	t := newTable(w, header...)
	for i := range list.Items {
		s := &list.Items[i]
		id := s.ID()
		if !wide {
			id = shorten(id, columns-44)
		}
		row := []string{
			id, protocolOf(s), fmt.Sprint(s.Endpoints), fmt.Sprint(s.Selections), string(s.Verdict),
		}
		if wide {
			affinity := "-"
			if s.AffinitySeconds > 0 {
				affinity = fmt.Sprintf("%ds", s.AffinitySeconds)
			}
			row = append(row, evidence(s.LogE), fmt.Sprint(s.Pinned), fmt.Sprint(s.Missed), s.Algorithm, affinity,
				strings.Join(s.VIPs, ","))
		}
		t.row(row...)
	}
	t.flush()
	if n := list.Total - len(list.Items); n > 0 {
		fmt.Fprintf(w, "and %d more\n", n)
	}
}

// protocolOf is "tcp", or "tcp6" for the IPv6 side.
func protocolOf(s *api.Service) string {
	if s.Family == 6 {
		return s.Protocol + "6"
	}
	return s.Protocol
}

// evidence is an e-value from its natural logarithm, as a power of ten.
func evidence(logE float64) string {
	exponent := logE / math.Ln10
	if math.Abs(exponent) >= 999.95 {
		return fmt.Sprintf("1e%.0f", exponent)
	}
	return fmt.Sprintf("1e%.1f", exponent)
}

// shorten takes the middle out of a text that is too long.
func shorten(text string, width int) string {
	if len(text) <= width {
		return text
	}
	width = max(width, 2)
	half := (width - 2) / 2
	return text[:width-2-half] + ".." + text[len(text)-half:]
}

// completeServices completes names of Services, in silence if there is no agent.
func completeServices(socket *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		name := func(s *api.Service) string { return s.Namespace + "/" + s.Name }
		return askNames(cmd.Context(), *socket, begun, name), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNamespaces completes names of namespaces that have Services.
func completeNamespaces(socket *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		name := func(s *api.Service) string { return s.Namespace }
		return askNames(cmd.Context(), *socket, begun, name), cobra.ShellCompDirectiveNoFileComp
	}
}

// askNames returns the different names that Services have and that begin so, none if
// there is no agent.
func askNames(ctx context.Context, socket, begun string, name func(*api.Service) string) []string {
	client := api.NewClient(socket)
	defer client.Close()
	list, err := client.Last().Services(ctx, api.Query{})
	if err != nil {
		return nil
	}
	var names []string
	for i := range list.Items {
		if n := name(&list.Items[i]); strings.HasPrefix(n, begun) {
			names = append(names, n)
		}
	}
	// They are sorted.
	return slices.Compact(names)
}
