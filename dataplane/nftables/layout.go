// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/veridict/veridict/dataplane"
)

// Layout is how the bucket gets from the dispatch chain to the endpoints map.
type Layout string

const (
	// MarkFree draws the bucket inside the key of the lookup. It changes
	// nobody's marks.
	MarkFree Layout = "markfree"
	// CTMark carries the bucket in the conntrack mark, where conntrack -L
	// shows it. It overwrites the whole mark of every Service connection,
	// which breaks whoever else keeps bits there.
	CTMark Layout = "ctmark"
)

// ParseLayout returns the layout of that name.
func ParseLayout(name string) (Layout, error) {
	switch layout := Layout(name); layout {
	case MarkFree, CTMark:
		return layout, nil
	default:
		return "", fmt.Errorf("unknown layout %q: use %s or %s", name, MarkFree, CTMark)
	}
}

// Names of the tables' objects. Chain and map names are a promise to people who
// read the rules: "nft list map ip veridict service-ips".
const (
	tableName = "veridict"

	serviceIPs          = "service-ips"
	noEndpointServices  = "no-endpoint-services"
	clusterIPs          = "cluster-ips"
	hairpinConnections  = "hairpin-connections"
	markedEndpoints     = "endpoints"
	endpointsTCP        = "endpoints-tcp"
	endpointsUDP        = "endpoints-udp"
	endpointsSCTP       = "endpoints-sctp"
	clusterPrefix       = "cluster-"
	rejectChain         = "reject-chain"
	missedChain         = "missed"
	servicesChain       = "services"
	endpointsCheckChain = "endpoints-check"
)

// family is what differs between the two tables. Rule code is written once and
// takes these values.
type family struct {
	id dataplane.Family
	// ip is the word that stands before saddr and daddr.
	ip string
	// addrLen is the length of an address in bytes.
	addrLen int
}

func families() []family {
	return []family{{dataplane.IPv4, "ip", 4}, {dataplane.IPv6, "ip6", 16}}
}

// endpointsMap returns the name of the map that holds the rows of protocol.
func (l Layout) endpointsMap(protocol dataplane.Protocol) string {
	if l == CTMark {
		return markedEndpoints
	}
	switch protocol {
	case dataplane.TCP:
		return endpointsTCP
	case dataplane.UDP:
		return endpointsUDP
	default:
		return endpointsSCTP
	}
}

// endpointsMaps returns the declarations of all maps that hold rows.
func (l Layout) endpointsMaps(f family) []setDecl {
	if l == CTMark {
		addr := "ipv4_addr"
		if f.id == dataplane.IPv6 {
			addr = "ipv6_addr"
		}
		// With typeof and th dport, rules added later are refused as
		// "conflicting protocols".
		return []setDecl{{
			name: markedEndpoints, kind: dataMap,
			typ: addr + " . inet_proto . inet_service . mark : " + addr + " . inet_service",
		}}
	}
	var decls []setDecl
	for _, p := range dataplane.Protocols() {
		decls = append(decls, setDecl{
			name: l.endpointsMap(p), kind: dataMap,
			typeOf: fmt.Sprintf("%[1]s daddr . %[2]s dport . numgen random mod 65536 : %[1]s daddr . %[2]s dport", f.ip, p),
		})
	}
	return decls
}

// dispatch returns the rules that draw one of n buckets and look it up.
func (l Layout) dispatch(f family, n int) []string {
	var rules []string
	for _, p := range dataplane.Protocols() {
		draw := fmt.Sprintf("numgen random mod %d", n)
		key := fmt.Sprintf("%s daddr . %s dport . %s", f.ip, p, draw)
		mark := ""
		if l == CTMark {
			mark = "ct mark set " + draw + " "
			key = f.ip + " daddr . meta l4proto . th dport . ct mark"
		}
		rules = append(rules, fmt.Sprintf("meta l4proto %s %sdnat %s addr . port to %s map @%s", p, mark, f.ip, key, l.endpointsMap(p)))
	}
	return rules
}

// dispatchChain returns the chain that VIPs with n endpoints go to. A row that
// is not there would let the packet go untranslated: missed takes bucket 0
// instead, and counts.
func (l Layout) dispatchChain(f family, n int) chainDecl {
	return chainDecl{name: dispatchName(n), rules: append(l.dispatch(f, n), "goto "+missedChain)}
}

func dispatchName(n int) string { return clusterPrefix + strconv.Itoa(n) }

// dispatchSize returns the n of a chain named by dispatchName.
func dispatchSize(chain string) (int, bool) {
	digits, ok := strings.CutPrefix(chain, clusterPrefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || dispatchName(n) != chain {
		return 0, false
	}
	return n, true
}

func isDispatch(chain string) bool {
	_, ok := dispatchSize(chain)
	return ok
}
