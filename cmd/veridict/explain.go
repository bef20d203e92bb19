// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/host"
)

func newExplainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain CLIENT VIP:PORT[/PROTOCOL]",
		Short: "Say where a connection goes and why, by the rules that the kernel holds",
		Long: `Say where a connection goes and why, by the rules that the kernel holds.

CLIENT is the address that the connection comes from. The protocol is tcp, udp or
sctp, tcp if it is not given; an IPv6 address stands in brackets. The path of the
first packet is followed through maps, chains and rows for every bucket that can be
drawn; nothing is sent and nothing is changed.

Which interface the packet comes in by is looked up in the routing table, as is
whether an address is the node's own.`,
		Example: `  veridict explain 10.244.1.7 10.96.0.10:53/udp
  veridict explain -o json 203.0.113.9 '[2001:db8::1]:30080'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("want CLIENT and VIP:PORT[/PROTOCOL], got %d arguments", len(args))
			}
			return nil
		},
	}
	output := addOutputFlag(cmd, "json")
	in := cmd.Flags().String("in-interface", "", "`interface` that the packet comes in by (default: where the route to CLIENT leads)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q, err := parseQuestion(args[0], args[1])
		if err != nil {
			return usageError{err}
		}
		if q.In, err = entrance(q.Client, *in, host.RouteTo); err != nil {
			return err
		}
		explanation, err := explainKernel(cmd.Context(), q)
		if err != nil {
			return err
		}
		if output.value == "json" {
			return writeJSON(cmd.OutOrStdout(), explainReport{
				Client: q.Client, Interface: q.In, To: q.To.String(), explanation: explanation,
			})
		}
		writeExplanation(cmd.OutOrStdout(), q, explanation)
		return nil
	}
	return cmd
}

// entrance returns the interface that packets of a client come in by, empty if the
// client is the node itself. The routing table is asked only if it is not given.
func entrance(client netip.Addr, given string, routeTo func(netip.Addr) (host.Route, error)) (string, error) {
	if given != "" {
		return given, nil
	}
	route, err := routeTo(client)
	switch {
	case err != nil:
		return "", err
	case route.Local:
		return "", nil
	case route.Interface == "":
		return "", fmt.Errorf("there is no route to %s: name the interface that it comes in by with --in-interface", client)
	default:
		return route.Interface, nil
	}
}

// explainReport is what explain prints with -o json.
type explainReport struct {
	Client netip.Addr `json:"client"`
	// Interface is where the packet comes in, empty if the node sends it.
	Interface string `json:"interface"`
	// To is "address:port/protocol".
	To string `json:"to"`
	*explanation
}

func parseQuestion(client, to string) (question, error) {
	var q question
	var err error
	if q.Client, err = convert.ParseAddr(strings.Trim(client, "[]")); err != nil {
		return q, fmt.Errorf("client: %w", err)
	}
	address, protocol, given := strings.Cut(to, "/")
	q.To.Protocol = dataplane.TCP
	if given {
		q.To.Protocol = 0
		for _, p := range dataplane.Protocols() {
			if p.String() == strings.ToLower(protocol) {
				q.To.Protocol = p
			}
		}
		if q.To.Protocol == 0 {
			return q, fmt.Errorf("%q is not tcp, udp or sctp", protocol)
		}
	}
	split := strings.LastIndexByte(address, ':')
	if split < 0 || strings.Contains(address[:split], ":") && !strings.HasPrefix(address, "[") {
		return q, fmt.Errorf("%q is not ADDRESS:PORT; an IPv6 address stands in brackets", address)
	}
	if q.To.Addr, err = convert.ParseAddr(strings.Trim(address[:split], "[]")); err != nil {
		return q, err
	}
	port, err := strconv.ParseUint(address[split+1:], 10, 16)
	if err != nil || port == 0 {
		return q, fmt.Errorf("%q is not a port (1 to 65535)", address[split+1:])
	}
	q.To.Port = uint16(port)
	if dataplane.FamilyOf(q.To.Addr) != dataplane.FamilyOf(q.Client) {
		return q, fmt.Errorf("%s and %s are not of the same IP family", q.Client, q.To.Addr)
	}
	return q, nil
}

// maxTargets is how many endpoints are shown to a person.
const maxTargets = 20

func writeExplanation(w io.Writer, q question, e *explanation) {
	from := "by " + q.In
	if q.In == "" {
		from = "from the node itself"
	}
	fmt.Fprintf(w, "%s connects to %s, %s: %s\n  %s\n", q.Client, q.To, from, e.Verdict, e.Reason)
	if len(e.Targets) > 0 {
		fmt.Fprintln(w, "\nIt can come to:")
	}
	for i, target := range e.Targets {
		if i == maxTargets {
			fmt.Fprintf(w, "  and %d more endpoints\n", len(e.Targets)-i)
			break
		}
		buckets := fmt.Sprintf("%d of the buckets", target.Buckets)
		switch target.Buckets {
		case 0:
			buckets = "pinned"
		case 1:
			buckets = "1 bucket"
		}
		fmt.Fprintf(w, "  %6.2f %%  %-28s %s\n", 100*target.Probability, target.Endpoint, buckets)
	}
	for _, masquerade := range []bool{true, false} {
		seen := make(map[string]bool)
		for _, target := range e.Targets {
			if target.Masquerade != masquerade || seen[target.Why] {
				continue
			}
			seen[target.Why] = true
			verb := "not masqueraded"
			if masquerade {
				verb = "masqueraded"
			}
			fmt.Fprintf(w, "%s: %s\n", verb, target.Why)
		}
	}
	if len(e.Steps) > 0 {
		heading := "The way of the first packet:"
		if len(e.Targets) > 1 {
			heading = "The way of the first packet to the first of them:"
		}
		fmt.Fprintf(w, "\n%s\n", heading)
	}
	last := ""
	for _, s := range e.Steps {
		if where := s.Hook + " " + s.Chain; where != last {
			fmt.Fprintf(w, "  %s, chain %s\n", s.Hook, s.Chain)
			last = where
		}
		parts := []string{s.Action}
		if s.Set != "" {
			parts = append(parts, "@"+s.Set)
		}
		for _, text := range []string{s.Element, s.Detail} {
			if text != "" {
				parts = append(parts, text)
			}
		}
		fmt.Fprintf(w, "    %s\n", strings.Join(parts, "  "))
	}
}
