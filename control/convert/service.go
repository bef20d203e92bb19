// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/veridict/veridict/dataplane"
)

// LabelServiceProxyName hands a Service to another proxy, whatever its value.
const LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// Service is what a proxy needs of a v1 Service.
type Service struct {
	Name Name
	// Created is the creation time in seconds since 1970, 0 if the object
	// has none.
	Created int64
	// IPv4 and IPv6 are the cluster IPs, zero where there is none. A Service
	// that is not to be proxied (headless, ExternalName, another proxy's) has
	// none at all.
	IPv4, IPv6 netip.Addr
	// Ports have distinct names, distinct numbers and distinct NodePorts per
	// protocol.
	Ports []Port
	// Traffic is nil for a Service that asks for nothing of it.
	Traffic *Traffic
}

// Port is one port of a Service or of an EndpointSlice.
type Port struct {
	Name     string
	Protocol dataplane.Protocol
	Port     uint16
	// NodePort is 0 where there is none, and in EndpointSlices.
	NodePort uint16
}

// Key is part of [Object].
func (s *Service) Key() Key { return Key{KindService, s.Name} }

// Equal is part of [Object].
func (s *Service) Equal(other Object) bool {
	o, ok := other.(*Service)
	return ok && s.Name == o.Name && s.Created == o.Created && s.IPv4 == o.IPv4 && s.IPv6 == o.IPv6 &&
		slices.Equal(s.Ports, o.Ports) && s.Traffic.equal(o.Traffic)
}

// ClusterIP returns the cluster IP of a family, the zero Addr if there is none.
func (s *Service) ClusterIP(family dataplane.Family) netip.Addr {
	if family == dataplane.IPv6 {
		return s.IPv6
	}
	return s.IPv4
}

// FromService converts a Service.
func FromService(in *v1.Service) (*Service, []Problem) {
	out := &Service{Name: Name{intern(namespace(in.Namespace)), intern(in.Name)}}
	if !in.CreationTimestamp.IsZero() {
		out.Created = in.CreationTimestamp.Unix()
	}
	if !proxied(in) {
		return out, nil
	}
	p := problems{object: out.Key().String()}
	out.setClusterIPs(&in.Spec, &p)
	for i := range in.Spec.Ports {
		out.addPort(&in.Spec.Ports[i], in.Spec.Type, fmt.Sprintf("spec.ports[%d]", i), &p)
	}
	out.setTraffic(in, &p)
	return out, p.list
}

// proxied says whether traffic to the Service is this proxy's business.
func proxied(in *v1.Service) bool {
	if _, other := in.Labels[LabelServiceProxyName]; other {
		return false
	}
	if in.Spec.Type == v1.ServiceTypeExternalName || in.Spec.ClusterIP == v1.ClusterIPNone {
		return false
	}
	return len(in.Spec.ClusterIPs) == 0 || in.Spec.ClusterIPs[0] != v1.ClusterIPNone
}

// setClusterIPs takes spec.clusterIPs, or spec.clusterIP where only that is
// there, as in objects that an API server never saw.
func (s *Service) setClusterIPs(spec *v1.ServiceSpec, p *problems) {
	if len(spec.ClusterIPs) == 0 {
		if spec.ClusterIP != "" {
			s.setClusterIP(spec.ClusterIP, "", "spec.clusterIP", p)
		}
		return
	}
	for i, text := range spec.ClusterIPs {
		var family v1.IPFamily
		if i < len(spec.IPFamilies) {
			family = spec.IPFamilies[i]
		}
		s.setClusterIP(text, family, fmt.Sprintf("spec.clusterIPs[%d]", i), p)
	}
}

func (s *Service) setClusterIP(text string, want v1.IPFamily, field string, p *problems) {
	addr, err := ParseAddr(text)
	if err != nil {
		p.add(field, "%v", err)
		return
	}
	if addr.IsUnspecified() || addr.IsMulticast() || addr.IsLoopback() {
		p.add(field, "%s cannot be a cluster IP", addr)
		return
	}
	family := dataplane.FamilyOf(addr)
	if want != "" && string(want) != family.String() {
		p.add(field, "%s is not of family %s, which spec.ipFamilies asks for", addr, want)
		return
	}
	slot := &s.IPv4
	if family == dataplane.IPv6 {
		slot = &s.IPv6
	}
	if slot.IsValid() {
		p.add(field, "%s: a second cluster IP of family %s is ignored", addr, family)
		return
	}
	*slot = addr
}

func (s *Service) addPort(in *v1.ServicePort, kind v1.ServiceType, field string, p *problems) {
	port, ok := newPort(in.Name, string(in.Protocol), in.Port, field, p)
	if !ok {
		return
	}
	for _, other := range s.Ports {
		if !port.clashes(other) {
			continue
		}
		if other.Port == port.Port {
			p.add(field+".port", "%d/%s is already a port of this Service; the first one is used", port.Port, port.Protocol)
		} else {
			p.add(field+".name", "%q (%s) is already a port of this Service; the first one is used", port.Name, port.Protocol)
		}
		return
	}
	if kind == v1.ServiceTypeNodePort || kind == v1.ServiceTypeLoadBalancer {
		port.NodePort = s.nodePort(in.NodePort, port.Protocol, field+".nodePort", p)
	}
	s.Ports = append(s.Ports, port)
}

// nodePort returns 0 for a number that is none or that another port has.
func (s *Service) nodePort(number int32, protocol dataplane.Protocol, field string, p *problems) uint16 {
	if number < 0 || number > 65535 {
		p.add(field, "%d is not a port number (1 to 65535)", number)
		return 0
	}
	if hasNodePort(s.Ports, protocol, uint16(number)) {
		p.add(field, "%d/%s is already a NodePort of this Service; the first one is used", number, protocol)
		return 0
	}
	return uint16(number)
}

// hasNodePort says whether one of the ports has the NodePort; 0 is none.
func hasNodePort(ports []Port, protocol dataplane.Protocol, number uint16) bool {
	return number != 0 && slices.ContainsFunc(ports, func(o Port) bool { return o.Protocol == protocol && o.NodePort == number })
}

// newPort checks number and protocol; without a protocol it is TCP.
func newPort(name, protocol string, number int32, field string, p *problems) (Port, bool) {
	if number < 1 || number > 65535 {
		p.add(field+".port", "%d is not a port number (1 to 65535)", number)
		return Port{}, false
	}
	if name != "" && len(validation.IsDNS1123Label(name)) > 0 {
		p.add(field+".name", "%q is not a port name (lower-case letters, digits and \"-\", at most 63)", name)
		return Port{}, false
	}
	port := Port{Name: intern(name), Protocol: dataplane.TCP, Port: uint16(number)}
	switch v1.Protocol(protocol) {
	case v1.ProtocolTCP, "":
	case v1.ProtocolUDP:
		port.Protocol = dataplane.UDP
	case v1.ProtocolSCTP:
		port.Protocol = dataplane.SCTP
	default:
		p.add(field+".protocol", "%q is not TCP, UDP or SCTP", protocol)
		return Port{}, false
	}
	return port, true
}

// namespace is where an object lives that names no namespace.
func namespace(name string) string {
	if name == "" {
		return v1.NamespaceDefault
	}
	return name
}

// problems collects what is wrong with one object.
type problems struct {
	object string
	list   []Problem
}

func (p *problems) add(field, format string, args ...any) {
	p.list = append(p.list, Problem{Object: p.object, Field: field, Message: fmt.Sprintf(format, args...)})
}
