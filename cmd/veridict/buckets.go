// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/veridict/veridict/control/api"
	"github.com/veridict/veridict/control/observe"
)

func newBucketsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "buckets SERVICE",
		Short: "Show how connections to a Service spread over its endpoints",
		Long: `Show how connections to a Service spread over its endpoints: the share of
buckets that each has, the share of draws that it got, and whether that is as
even as it should be. An asterisk marks endpoints on this node.

SERVICE is NAMESPACE/NAME, NAMESPACE/NAME:PORT, or NAME if only one namespace
has it. Draws count from when the set of endpoints became what it is. The band
is what chance does to a share: 95 of 100 even ones are inside. With session
affinity, only the first connections of clients are draws.`,
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
				writeBuckets(w, &list.Items[i], bucketsView{now: now, wide: o.wide(), unicode: unicodeOutput()})
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
	for _, item := range list.Items {
		if item.Port == port {
			kept = append(kept, item)
		}
		ports = append(ports, item.Port)
	}
	if len(kept) == 0 {
		return nil, noPort(namespace+"/"+plain, port, ports)
	}
	list.Items, list.Total = kept, len(kept)
	return list, nil
}

// noPort says which ports there are, each IP family and protocol having them again.
func noPort(service, port string, ports []string) error {
	slices.Sort(ports)
	ports = slices.Compact(ports)
	if len(ports) == 1 && ports[0] == "" {
		return fmt.Errorf("Service %s has only a port without a name", service) //nolint:staticcheck // a name
	}
	for i := range ports {
		ports[i] = strconv.Quote(ports[i])
	}
	return fmt.Errorf("Service %s has no port %q, but %s", service, port, strings.Join(ports, ", ")) //nolint:staticcheck // a name
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

// bucketsView is how buckets are shown.
type bucketsView struct {
	now           time.Time
	wide, unicode bool
}

func writeBuckets(w io.Writer, s *api.Service, v bucketsView) {
	title, vips := fmt.Sprintf("%s (%s)", s.ID(), protocolOf(s)), strings.Join(s.VIPs, " ")
	if v.wide || len(title)+2+len(vips) <= columns {
		fmt.Fprintln(w, strings.TrimRight(title+"  "+vips, " "))
	} else {
		fmt.Fprintln(w, title)
		for _, line := range wrap(vips, columns-2) {
			fmt.Fprintln(w, "  "+line)
		}
	}
	counts := fmt.Sprintf("%d selections", s.Selections)
	if s.AffinitySeconds > 0 {
		counts += fmt.Sprintf(", %d of them by session affinity", s.Pinned)
	}
	if s.Missed > 0 {
		counts += fmt.Sprintf("; %d connections were not translated", s.Missed)
	}
	for _, line := range wrap(counts, columns) {
		fmt.Fprintln(w, line)
	}
	for i := range s.Pools {
		p := &s.Pools[i]
		fmt.Fprintln(w)
		if len(s.Pools) > 1 {
			fmt.Fprintln(w, map[bool]string{false: "all endpoints", true: "traffic policy Local"}[p.Local])
		}
		if len(p.Endpoints) > 0 {
			v.endpoints(w, p)
		}
		for _, line := range wrap(sentence(&p.Verdict), columns) {
			fmt.Fprintln(w, line)
		}
	}
}

// The width of the longest bar, and of the shortest that is worth its place.
const (
	barWidth    = 16
	minBarWidth = 4
)

// endpoints writes a table of the endpoints of a pool. Bars have the room that is left.
func (v *bucketsView) endpoints(w io.Writer, p *api.Pool) {
	largest := 0.0
	rows := make([][]string, len(p.Endpoints))
	header := []string{"ENDPOINT", "BUCKETS", "EXPECTED", "BAND", "OBSERVED", "DRAWS", "LAST"}
	if v.wide {
		header = append(header, "TOTAL")
	}
	for i := range p.Endpoints {
		ep := &p.Endpoints[i]
		largest = max(largest, ep.Share, observed(p, i))
		address := ep.Address
		if ep.Local {
			address += " *"
		}
		seen := "-"
		if p.Verdict.Draws > 0 {
			seen = percent(observed(p, i))
		}
		rows[i] = []string{
			address, fmt.Sprint(ep.Buckets), percent(ep.Share), band(ep.Share, p.Verdict.Draws),
			seen, fmt.Sprint(ep.Drawn), ago(v.now, ep.Last),
		}
		if v.wide {
			rows[i] = append(rows[i], fmt.Sprint(ep.Total))
		}
	}
	bars := barWidth
	if !v.wide {
		bars = fitEndpoints(header, rows)
	}
	t := newTable(w, withBar(header, "", bars)...)
	for i, row := range rows {
		t.row(withBar(row, bar(observed(p, i)/max(largest, 1e-9), bars, v.unicode), bars)...)
	}
	t.flush()
}

// fitEndpoints shortens addresses until the table fits, and returns the room for bars, 0
// if there is none.
func fitEndpoints(header []string, rows [][]string) int {
	room, longest := columns, 0
	for column := range header {
		width := len(header[column])
		for _, row := range rows {
			width = max(width, utf8.RuneCountInString(row[column]))
		}
		if column == 0 {
			longest = width
			continue
		}
		room -= width + 2
	}
	for _, row := range rows {
		row[0] = shorten(row[0], room)
	}
	if bars := min(room-longest-2, barWidth); bars >= minBarWidth {
		return bars
	}
	return 0
}

// withBar puts a bar behind the share that it shows, if bars have any width.
func withBar(row []string, bar string, width int) []string {
	if width == 0 {
		return row
	}
	return slices.Insert(row, 5, bar)
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
	p := fmt.Sprintf("p %.3f", e.PValue)
	if e.PValue < 0.001 {
		p = "p < 0.001"
	}
	numbers := fmt.Sprintf("%d draws, evidence %s, %s", e.Draws, evidence(e.LogE), p)
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
