// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"net/netip"
)

// Family is an IP family. A dual-stack Service has ServicePorts of both.
type Family uint8

// The two IP families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyOf returns the family of addr. An IPv4-mapped IPv6 address is IPv6, as
// it is in a packet; unmap it first where that is not meant.
func FamilyOf(addr netip.Addr) Family {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns "IPv4" or "IPv6", the values of the ip_family label of
// kube-proxy's metrics.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	default:
		return fmt.Sprintf("Family(%d)", uint8(f))
	}
}

// Protocol is a transport protocol by its IANA number, as in the IP header.
type Protocol uint8

// The protocols that a Service can have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// Protocols lists all protocols in the order in which rules name them.
func Protocols() []Protocol { return []Protocol{TCP, UDP, SCTP} }

// String returns the name that nft and /etc/protocols use: "tcp", "udp" or
// "sctp".
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	default:
		return fmt.Sprintf("Protocol(%d)", uint8(p))
	}
}

// ServicePortName identifies one port of one Service.
type ServicePortName struct {
	Namespace string
	Name      string
	// Port is the name of the port; empty for an unnamed one.
	Port     string
	Protocol Protocol
}

// String returns "namespace/name:port", or "namespace/name" for an unnamed
// port.
func (n ServicePortName) String() string {
	if n.Port == "" {
		return n.Namespace + "/" + n.Name
	}
	return n.Namespace + "/" + n.Name + ":" + n.Port
}

// ServicePortKey identifies a ServicePort: each family of a dual-stack Service
// is one of its own.
type ServicePortKey struct {
	ServicePortName
	Family Family
}

// String returns "namespace/name:port (tcp, IPv4)".
func (k ServicePortKey) String() string {
	return fmt.Sprintf("%s (%s, %s)", k.ServicePortName, k.Protocol, k.Family)
}

// Endpoint is one address and port that connections can be sent to.
type Endpoint struct {
	Addr netip.AddrPort
	// Local says that the endpoint runs on this node.
	Local bool
}

// ServicePort is one port of a Service in one IP family, with the endpoints
// that were chosen for it.
type ServicePort struct {
	Key ServicePortKey
	// ClusterIP is of the key's family, never the zero Addr.
	ClusterIP netip.Addr
	// Port is never 0.
	Port uint16
	// Endpoints are those that traffic policy Cluster may use: at most
	// [MaxEndpoints], each address and port once, sorted by Addr. Without
	// any, connections are rejected.
	Endpoints []Endpoint
}

// MaxEndpoints is the largest number of endpoints of a ServicePort: buckets
// from 65536 up belong to the local endpoints of the same frontend.
const MaxEndpoints = 65535

// VIP is the address, protocol and port that a client connects to.
type VIP struct {
	Addr     netip.Addr
	Protocol Protocol
	Port     uint16
}

// String returns "address:port/protocol".
func (v VIP) String() string {
	return netip.AddrPortFrom(v.Addr, v.Port).String() + "/" + v.Protocol.String()
}

// VIP returns the cluster IP, protocol and port of the ServicePort.
func (p *ServicePort) VIP() VIP {
	return VIP{Addr: p.ClusterIP, Protocol: p.Key.Protocol, Port: p.Port}
}

// LocalDetector says how a packet from a pod of this node is recognised. The
// zero value recognises none.
type LocalDetector struct {
	// CIDRs are the pods' source addresses, at most one per family.
	CIDRs []netip.Prefix
	// Interface is the bridge that pods' packets come in by.
	Interface string
	// InterfacePrefix is what the names of the pods' interfaces begin with.
	InterfacePrefix string
}

// Settings are the facts that rules, rather than elements, are made from. They
// change rarely.
type Settings struct {
	// ServiceCIDRs are the ranges that cluster IPs come from, of both
	// families. Packets to an address of theirs that no Service has are
	// dropped.
	ServiceCIDRs []netip.Prefix
	// LocalDetector separates pods of this node from all other sources.
	LocalDetector LocalDetector
	// MasqueradeAll masquerades all traffic to cluster IPs.
	MasqueradeAll bool
}

// State is everything that should be programmed. No two ServicePorts have the
// same VIP.
type State struct {
	Settings     Settings
	ServicePorts map[ServicePortKey]ServicePort
}
