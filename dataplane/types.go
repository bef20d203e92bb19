// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
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

// Compare orders keys by namespace, name, port, protocol and family.
func (k ServicePortKey) Compare(o ServicePortKey) int {
	return cmp.Or(
		cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.Name, o.Name),
		cmp.Compare(k.Port, o.Port), cmp.Compare(k.Protocol, o.Protocol), cmp.Compare(k.Family, o.Family),
	)
}

// Endpoint is one address and port that connections can be sent to.
type Endpoint struct {
	Addr netip.AddrPort
	// Local says that the endpoint runs on this node.
	Local bool
	// Weight is the number of buckets that lead to the endpoint. 0 counts
	// as 1.
	Weight uint16
}

// Buckets returns the number of buckets that lead to the endpoint.
func (e Endpoint) Buckets() int { return max(int(e.Weight), 1) }

// Algorithm is how the bucket of a new connection is drawn.
type Algorithm uint8

// The algorithms.
const (
	// Random draws uniformly.
	Random Algorithm = iota
	// SourceHash draws by a hash of the client's address. The same client gets
	// the same bucket as long as the number of buckets stays; buckets keep no
	// order among nodes.
	SourceHash
)

// ServicePort is one port of a Service in one IP family, with the endpoints
// that were chosen for it. It is immutable once handed over.
type ServicePort struct {
	Key ServicePortKey
	// ClusterIP is of the key's family, never the zero Addr.
	ClusterIP netip.Addr
	// Port is never 0.
	Port uint16
	// InternalLocal says that connections to the cluster IP may use
	// LocalEndpoints only (internalTrafficPolicy).
	InternalLocal bool
	Algorithm     Algorithm
	// AffinitySeconds is how long a client stays with the endpoint of its
	// last connection. 0: no session affinity. At most 86400.
	AffinitySeconds uint32
	// Endpoints are those that traffic policy Cluster may use: each address
	// and port once, sorted by Addr, with at most [MaxBuckets] buckets in
	// all. Without any, connections to all frontends are rejected.
	Endpoints []Endpoint
	// LocalEndpoints are those that traffic policy Local may use, all of them
	// on this node; otherwise as Endpoints. They need not be among those: the
	// policies choose independently. Where Endpoints has some and
	// LocalEndpoints none, connections under policy Local are dropped. Nil
	// where no policy is Local.
	LocalEndpoints []Endpoint
	// External is nil for a ServicePort that is reached by its cluster IP
	// only.
	External *External
	// Serving are the addresses of all endpoints that still serve, in use or
	// not, sorted: flows to others are stale. It is filled in for UDP only.
	Serving []netip.AddrPort
}

// External is how a ServicePort is reached from outside the cluster.
type External struct {
	// IPs are the external IPs and the load balancer's: of the key's family,
	// sorted, each once, not the cluster IP. The port is that of the
	// ServicePort.
	IPs []netip.Addr
	// NodePort is served on the addresses that [Settings] names. 0: none.
	NodePort uint16
	// Local says that connections from outside may use LocalEndpoints only
	// and keep their source address (externalTrafficPolicy). Those of pods
	// and of the node itself use Endpoints even so.
	Local bool
	// Guarded are those of IPs that only SourceRanges may connect to, sorted.
	Guarded []netip.Addr
	// SourceRanges may overlap. It is empty exactly if Guarded is.
	SourceRanges []netip.Prefix
}

// MaxBuckets is the largest number of buckets of a ServicePort in one scope:
// buckets from 65536 up belong to the local endpoints of the same frontend.
const MaxBuckets = 65535

// VIP is the address, protocol and port that a client connects to: one frontend
// of a ServicePort. A NodePort has the zero Addr and stands for all of the node's
// addresses that take NodePorts.
type VIP struct {
	Addr     netip.Addr
	Protocol Protocol
	Port     uint16
}

// IsNodePort says whether the VIP is a NodePort.
func (v VIP) IsNodePort() bool { return !v.Addr.IsValid() }

// String returns "address:port/protocol", or "*:port/protocol" for a NodePort.
func (v VIP) String() string {
	if v.IsNodePort() {
		return fmt.Sprintf("*:%d/%s", v.Port, v.Protocol)
	}
	return netip.AddrPortFrom(v.Addr, v.Port).String() + "/" + v.Protocol.String()
}

// VIP returns the cluster IP, protocol and port of the ServicePort.
func (p *ServicePort) VIP() VIP {
	return VIP{Addr: p.ClusterIP, Protocol: p.Key.Protocol, Port: p.Port}
}

// VIPs returns all frontends of the ServicePort, the one of the cluster IP first
// and that of the NodePort last.
func (p *ServicePort) VIPs() []VIP {
	vips := []VIP{p.VIP()}
	if p.External == nil {
		return vips
	}
	for _, addr := range p.External.IPs {
		vips = append(vips, VIP{Addr: addr, Protocol: p.Key.Protocol, Port: p.Port})
	}
	if p.External.NodePort != 0 {
		vips = append(vips, VIP{Protocol: p.Key.Protocol, Port: p.External.NodePort})
	}
	return vips
}

// Equal says whether the ServicePorts are programmed the same.
func (p *ServicePort) Equal(o *ServicePort) bool {
	return p.Key == o.Key && p.ClusterIP == o.ClusterIP && p.Port == o.Port &&
		p.InternalLocal == o.InternalLocal && p.Algorithm == o.Algorithm &&
		p.AffinitySeconds == o.AffinitySeconds && slices.Equal(p.Endpoints, o.Endpoints) &&
		slices.Equal(p.LocalEndpoints, o.LocalEndpoints) && p.External.equal(o.External) &&
		slices.Equal(p.Serving, o.Serving)
}

func (e *External) equal(o *External) bool {
	if e == nil || o == nil {
		return e == o
	}
	return e.NodePort == o.NodePort && e.Local == o.Local && slices.Equal(e.IPs, o.IPs) &&
		slices.Equal(e.Guarded, o.Guarded) && slices.Equal(e.SourceRanges, o.SourceRanges)
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
	// NodePortAddresses are the addresses of this node that take NodePorts,
	// of both families, sorted, without loopback addresses.
	NodePortAddresses []netip.Addr
	// AllAddresses are the families in which every address of the node, loopback
	// apart, takes NodePorts; NodePortAddresses has none of these.
	AllAddresses []Family
	// Localhost says what becomes of connections to a NodePort on a loopback
	// address.
	Localhost LocalhostNodePorts
	// LocalhostTargets are addresses of this node that take NodePorts, at most one
	// of each family: connections to NodePorts on loopback addresses can be led
	// there before they are made. Filled in for LocalhostProxied only.
	LocalhostTargets []netip.Addr
}

// Equal says whether the settings make the same rules.
func (s *Settings) Equal(o *Settings) bool {
	return slices.Equal(s.ServiceCIDRs, o.ServiceCIDRs) && s.LocalDetector.equal(&o.LocalDetector) &&
		s.MasqueradeAll == o.MasqueradeAll && slices.Equal(s.NodePortAddresses, o.NodePortAddresses) &&
		slices.Equal(s.AllAddresses, o.AllAddresses) && s.Localhost == o.Localhost &&
		slices.Equal(s.LocalhostTargets, o.LocalhostTargets)
}

func (d *LocalDetector) equal(o *LocalDetector) bool {
	return slices.Equal(d.CIDRs, o.CIDRs) && d.Interface == o.Interface && d.InterfacePrefix == o.InterfacePrefix
}

// LocalhostNodePorts is what the rules do with connections of the node to a
// NodePort on a loopback address. They are never translated.
type LocalhostNodePorts uint8

// What can become of them.
const (
	// LocalhostUntouched leaves them alone.
	LocalhostUntouched LocalhostNodePorts = iota
	// LocalhostProxied leaves those over TCP to a proxy in user space, and
	// rejects and counts the others. Those that are led elsewhere before they are
	// made are none of these.
	LocalhostProxied
	// LocalhostRejected rejects and counts all.
	LocalhostRejected
)

// State is everything that should be programmed. No two ServicePorts of a family
// have a VIP in common.
type State struct {
	Settings     Settings
	ServicePorts map[ServicePortKey]ServicePort
}
