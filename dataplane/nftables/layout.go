// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"

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
// read the rules: "nft list map ip veridict service-ips". What is keyed by a VIP
// has a twin that is keyed by the NodePort; see byKey.
const (
	tableName = "veridict"

	// Verdict maps. Every element leads to a chain without further verdict maps:
	// kernels without chain validation states (6.1, 6.12) follow each element to
	// the end whenever a verdict is added, and two levels of maps would make
	// that quadratic.
	serviceMap       = "service-"
	affinityMaps     = "affinity-"
	localMap         = "local-"
	affinityLocalMap = "affinity-local-"
	pinMap           = "pin-"
	pinLocalMap      = "pin-local-"
	noEndpointMap    = "no-endpoint-"

	// Sets.
	externalLocalSet   = "external-local-"
	masqueradeSet      = "masquerade-"
	clusterIPs         = "cluster-ips"
	nodePortIPs        = "nodeport-ips"
	learnedNodePortIPs = "learned-nodeport-ips"
	hairpinConnections = "hairpin-connections"
	firewallIPs        = "firewall-ips"
	// sourceRanges goes on with the protocol. As a field of the key it would be
	// turned around by nft 1.0.6, which kernels such as 6.12.117 refuse.
	sourceRanges = "source-ranges-"

	// Data maps; those of the markfree layout and of pins go on with the
	// protocol.
	endpointsMap         = "endpoints"
	nodePortEndpointsMap = "nodeport-endpoints"
	affinityIDPrefix     = "affinity-id-"

	rejectChain   = "reject-chain"
	missedChain   = "missed"
	servicesChain = "services"
	affinityChain = "affinity"
	unpinnedChain = "unpinned"
)

// byKey returns the name of a map or set of VIPs, or of its twin for NodePorts.
func byKey(name string, nodePort bool) string {
	switch {
	case nodePort:
		return name + "nodeports"
	case name == noEndpointMap:
		return name + "services"
	default:
		return name + "ips"
	}
}

// affinityMap returns the name of the map of pins by VIP.
func affinityMap(p dataplane.Protocol) string { return affinityMaps + p.String() }

// affinityIDMap returns the name of the map of pins by affinity id.
func affinityIDMap(p dataplane.Protocol) string { return affinityIDPrefix + p.String() }

// family is what differs between the two tables. Rule code is written once and
// takes these values.
type family struct {
	id dataplane.Family
	// ip is the word that stands before saddr and daddr.
	ip string
	// addrLen is the length of an address in bytes.
	addrLen int
	// loopback are the addresses that never leave the node, in nft's words.
	loopback string
}

func families() []family {
	return []family{{dataplane.IPv4, "ip", 4, "127.0.0.0/8"}, {dataplane.IPv6, "ip6", 16, "::1"}}
}

// rowsMap returns the name of the map that holds the rows of VIPs, or of
// NodePorts, of a protocol.
func (l Layout) rowsMap(nodePort bool, p dataplane.Protocol) string {
	switch {
	case l == CTMark && nodePort:
		return nodePortEndpointsMap
	case l == CTMark:
		return endpointsMap
	}
	switch {
	case nodePort && p == dataplane.TCP:
		return nodePortEndpointsMap + "-tcp"
	case nodePort && p == dataplane.UDP:
		return nodePortEndpointsMap + "-udp"
	case nodePort:
		return nodePortEndpointsMap + "-sctp"
	case p == dataplane.TCP:
		return endpointsMap + "-tcp"
	case p == dataplane.UDP:
		return endpointsMap + "-udp"
	default:
		return endpointsMap + "-sctp"
	}
}

// rowsMaps returns the declarations of all maps that hold rows.
func (l Layout) rowsMaps(f family) []setDecl {
	if l == CTMark {
		addr := "ipv4_addr"
		if f.id == dataplane.IPv6 {
			addr = "ipv6_addr"
		}
		// With typeof and th dport, rules added later are refused as
		// "conflicting protocols".
		row := fmt.Sprintf("inet_proto . inet_service . mark : %s . inet_service", addr)
		return []setDecl{
			{name: endpointsMap, kind: dataMap, typ: addr + " . " + row},
			{name: nodePortEndpointsMap, kind: dataMap, typ: row},
		}
	}
	var decls []setDecl
	for _, p := range dataplane.Protocols() {
		row := fmt.Sprintf("%[2]s dport . numgen random mod 65536 : %[1]s daddr . %[2]s dport", f.ip, p)
		decls = append(decls,
			setDecl{name: l.rowsMap(false, p), kind: dataMap, typeOf: f.ip + " daddr . " + row},
			setDecl{name: l.rowsMap(true, p), kind: dataMap, typeOf: row})
	}
	return decls
}

// pinMaps returns the declarations of the maps that packets write pins to, of at
// most size pins each.
func pinMaps(f family, size int) []setDecl {
	var decls []setDecl
	for _, p := range dataplane.Protocols() {
		endpoint := fmt.Sprintf(" : %s daddr . %s dport", f.ip, p)
		decls = append(decls,
			setDecl{
				name: affinityMap(p), kind: dataMap, learns: true, size: size,
				typeOf: fmt.Sprintf("%[1]s saddr . %[1]s daddr . %[2]s dport", f.ip, p) + endpoint,
			},
			setDecl{
				name: affinityIDMap(p), kind: dataMap, learns: true, size: size,
				typeOf: f.ip + " saddr . numgen inc mod 65536" + endpoint,
			})
	}
	return decls
}
