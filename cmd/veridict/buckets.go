// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/veridict/veridict/control/api"
	"github.com/veridict/veridict/control/observe"
)

func newBucketsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "buckets SERVICE",
		Short: "Show how connections to a Service spread over its endpoints",
		Long: `Show how connections to a Service spread over its endpoints: the share of buckets
that each has, the share of draws that it got, and whether that is as even as it
should be.

SERVICE is NAMESPACE/NAME, NAMESPACE/NAME:PORT, or NAME if only one namespace has it.
Draws count from when the set of endpoints became what it is. The band is what chance
does to a share: 95 of 100 even ones are inside. With session affinity, only the
first connections of clients are draws.`,
	}
	o := addAgentFlags(cmd)
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef("want one SERVICE, see veridict services")
		}
		return nil
	}
	cmd.ValidArgsFunction = completeServices(&o.socket)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client := api.NewClient(o.socket)
		defer client.Close()
		list, err := findService(cmd.Context(), client, args[0])
		if err != nil {
			return err
		}
		now := time.Now()
		return o.print(cmd.OutOrStdout(), list, func(w io.Writer) {
			for i := range list.Items {
				if i > 0 {
					fmt.Fprintln(w)
				}
				writeBuckets(w, &list.Items[i], now, unicodeOutput())
			}
		})
	}
	return cmd
}

// findService returns the ports of a Service that a user has named.
func findService(ctx context.Context, client *api.Client, text string) (*api.ServiceList, error) {
	name, port, hasPort := strings.Cut(text, ":")
	namespace, plain, qualified := strings.Cut(name, "/")
	if !qualified {
		plain = name
		var err error
		if namespace, err = onlyNamespace(ctx, client, name); err != nil {
			return nil, err
		}
	}
	list, err := client.Service(ctx, namespace, plain)
	if err != nil || !hasPort {
		return list, err
	}
	kept := list.Items[:0]
	var ports []string
	for i := range list.Items {
		if list.Items[i].Port == port {
			kept = append(kept, list.Items[i])
		}
		ports = append(ports, list.Items[i].Port)
	}
	if len(kept) == 0 {
		return nil, fmt.Errorf("Service %s/%s has no port %q, but %q", namespace, plain, port, ports) //nolint:staticcheck // a name
	}
	list.Items, list.Total = kept, len(kept)
	return list, nil
}

// onlyNamespace returns where a Service is, if that is one place.
func onlyNamespace(ctx context.Context, client *api.Client, name string) (string, error) {
	list, err := client.Services(ctx, api.Query{Name: name})
	if err != nil {
		return "", err
	}
	var found []string
	for i := range list.Items {
		if n := list.Items[i].Namespace; len(found) == 0 || found[len(found)-1] != n {
			found = append(found, n)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("there is no Service %s: see veridict services", name)
	case 1:
		return found[0], nil
	default:
		return "", usagef("%s is in several namespaces, name one: %s", name, strings.Join(found, ", "))
	}
}

// barWidth is that of a share in the table.
const barWidth = 16

func writeBuckets(w io.Writer, s *api.Service, now time.Time, unicode bool) {
	fmt.Fprintf(w, "%s (%s)  %s\n", s.ID(), protocolOf(s), strings.Join(s.VIPs, " "))
	fmt.Fprintf(w, "%d selections", s.Selections)
	if s.AffinitySeconds > 0 {
		fmt.Fprintf(w, ", %d of them by session affinity", s.Pinned)
	}
	if s.Missed > 0 {
		fmt.Fprintf(w, "; %d connections were not translated", s.Missed)
	}
	fmt.Fprintln(w)
	for i := range s.Pools {
		p := &s.Pools[i]
		fmt.Fprintln(w)
		if len(s.Pools) > 1 {
			fmt.Fprintln(w, map[bool]string{false: "all endpoints", true: "traffic policy Local"}[p.Local])
		}
		writePool(w, p, now, unicode)
	}
}

func writePool(w io.Writer, p *api.Pool, now time.Time, unicode bool) {
	largest := 0.0
	for i := range p.Endpoints {
		largest = max(largest, p.Endpoints[i].Share, observed(p, i))
	}
	t := newTable(w, "ENDPOINT", "BUCKETS", "EXPECTED", "BAND", "OBSERVED", "", "DRAWS", "LAST")
	for i := range p.Endpoints {
		ep := &p.Endpoints[i]
		address := ep.Address
		if ep.Local {
			address += " *"
		}
		t.row(address, fmt.Sprint(ep.Buckets), percent(ep.Share), band(ep.Share, p.Verdict.Draws),
			percent(observed(p, i)), bar(observed(p, i)/max(largest, 1e-9), barWidth, unicode),
			fmt.Sprint(ep.Drawn), ago(now, ep.Last))
	}
	t.flush()
	for _, line := range wrap(sentence(&p.Verdict), columns) {
		fmt.Fprintln(w, line)
	}
}

// observed is the share of draws that an endpoint got.
func observed(p *api.Pool, i int) float64 {
	if p.Verdict.Draws == 0 {
		return 0
	}
	return float64(p.Endpoints[i].Drawn) / float64(p.Verdict.Draws)
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

// band is how far even shares of so many draws are off, 95 times of 100.
func band(share float64, draws uint64) string {
	if draws == 0 {
		return "-"
	}
	return fmt.Sprintf("±%.1f", 100*1.96*math.Sqrt(share*(1-share)/float64(draws)))
}

// sentence says what the verdict means.
func sentence(e *api.Evenness) string {
	numbers := fmt.Sprintf("%d draws, evidence %s, p %.3f", e.Draws, evidence(e.LogE), e.PValue)
	switch e.Verdict {
	case observe.Untested:
		return "not tested: " + e.Untested
	case observe.TooFew:
		return fmt.Sprintf("too few draws to say (%s): one endpoint would have to be off by %s to be seen",
			numbers, offBy(e.Detectable))
	case observe.NotEven:
		return fmt.Sprintf("UNEVEN (%s): this is no chance", numbers)
	default:
		return fmt.Sprintf("even (%s): one endpoint off by %s or more would have been seen", numbers, offBy(e.Detectable))
	}
}

func offBy(deviation float64) string {
	if deviation == 0 || deviation > 10 {
		return "more than ten times its share"
	}
	return fmt.Sprintf("%.0f%% of its share", math.Ceil(100*deviation))
}
