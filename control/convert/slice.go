// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/veridict/veridict/dataplane"
)

// Slice is what a proxy needs of an EndpointSlice.
type Slice struct {
	Name Name
	// Service is the name of the Service, in the same namespace. It is empty
	// if the slice is not to be used: headless, no label, not IP addresses.
	Service   string
	Family    dataplane.Family
	Ports     []Port
	Endpoints []Endpoint
	// Weight is that of all endpoints, 0 where none is given.
	Weight uint16
	// Triggered is when the change of a Service or Pod happened that the slice
	// was written for last, zero where the slice does not say. A slice in which
	// nothing else differs is equal.
	Triggered time.Time
}

// Endpoint is one address of an EndpointSlice, with all ports of the slice.
type Endpoint struct {
	Addr netip.Addr
	Conditions
	// Zone is empty where it is not known.
	Zone string
	// Hints is nil for an endpoint without any.
	Hints *Hints
}

// Conditions are what is known of an endpoint, verbatim from its
// EndpointSlice, with unknown values as Kubernetes reads them.
type Conditions struct {
	Ready, Serving, Terminating bool
	// Local says that the endpoint runs on this node.
	Local bool
}

// Hints name the zones and nodes whose clients should use an endpoint.
type Hints struct {
	Zones, Nodes []string
}

// Key is part of [Object].
func (s *Slice) Key() Key { return Key{KindEndpointSlice, s.Name} }

// Equal is part of [Object].
func (s *Slice) Equal(other Object) bool {
	o, ok := other.(*Slice)
	return ok && s.Name == o.Name && s.Service == o.Service && s.Family == o.Family && s.Weight == o.Weight &&
		slices.Equal(s.Ports, o.Ports) && slices.EqualFunc(s.Endpoints, o.Endpoints, Endpoint.equal)
}

func (e Endpoint) equal(o Endpoint) bool {
	return e.Addr == o.Addr && e.Conditions == o.Conditions && e.Zone == o.Zone && e.Hints.equal(o.Hints)
}

func (h *Hints) equal(o *Hints) bool {
	if h == nil || o == nil {
		return h == o
	}
	return slices.Equal(h.Zones, o.Zones) && slices.Equal(h.Nodes, o.Nodes)
}

// FromEndpointSlice converts an EndpointSlice as node nodeName sees it.
func FromEndpointSlice(in *discoveryv1.EndpointSlice, nodeName string) (*Slice, []Problem) {
	out := &Slice{Name: Name{intern(namespace(in.Namespace)), intern(in.Name)}}
	if _, headless := in.Labels[v1.IsHeadlessService]; headless {
		return out, nil
	}
	p := problems{object: out.Key().String()}
	service := in.Labels[discoveryv1.LabelServiceName]
	if service == "" {
		p.add("metadata.labels", "the slice is ignored: it has no label %s", discoveryv1.LabelServiceName)
		return out, p.list
	}
	switch in.AddressType {
	case discoveryv1.AddressTypeIPv4:
		out.Family = dataplane.IPv4
	case discoveryv1.AddressTypeIPv6:
		out.Family = dataplane.IPv6
	case discoveryv1.AddressTypeFQDN:
		return out, nil
	default:
		p.add("addressType", "%q is not IPv4, IPv6 or FQDN; the slice is ignored", in.AddressType)
		return out, p.list
	}
	out.Service = intern(service)
	out.setPorts(in.Ports, &p)
	out.setEndpoints(in.Endpoints, nodeName, &p)
	out.setWeight(in.Annotations, &p)
	out.setTriggered(in.Annotations)
	return out, p.list
}

// setTriggered reports no mistake: nobody but the control plane writes the
// annotation, and only a metric comes from it.
func (s *Slice) setTriggered(annotations map[string]string) {
	if text := annotations[v1.EndpointsLastChangeTriggerTime]; text != "" {
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
			s.Triggered = at
		}
	}
}

// setPorts leaves out ports without a number, which mean "all ports" and are
// nothing that a Service can name. A port without a name is the unnamed one,
// as an API server would have made it.
func (s *Slice) setPorts(in []discoveryv1.EndpointPort, p *problems) {
	s.Ports = make([]Port, 0, len(in))
	for i := range in {
		if in[i].Port == nil {
			continue
		}
		port, ok := newPort(value(in[i].Name, ""), string(value(in[i].Protocol, "")), *in[i].Port,
			fmt.Sprintf("ports[%d]", i), p)
		if ok {
			s.Ports = append(s.Ports, port)
		}
	}
}

func (s *Slice) setWeight(annotations map[string]string, p *problems) {
	text, given := annotations[AnnotationWeight]
	if !given {
		return
	}
	weight, ok := parseWeight(text)
	if !ok {
		p.add(annotationField(AnnotationWeight), "%q is not a weight (1 to %d); it is ignored", text, maxWeight)
	}
	s.Weight = weight
}

func (s *Slice) setEndpoints(in []discoveryv1.Endpoint, nodeName string, p *problems) {
	s.Endpoints = make([]Endpoint, 0, len(in))
	for i := range in {
		addr, err := endpointAddr(in[i].Addresses, s.Family)
		if err != nil {
			p.add(fmt.Sprintf("endpoints[%d].addresses", i), "%v", err)
			continue
		}
		conditions := in[i].Conditions
		s.Endpoints = append(s.Endpoints, Endpoint{
			Addr: addr,
			Conditions: Conditions{
				Ready:       value(conditions.Ready, true),
				Serving:     value(conditions.Serving, true),
				Terminating: value(conditions.Terminating, false),
				Local:       nodeName != "" && value(in[i].NodeName, "") == nodeName,
			},
			Zone:  intern(value(in[i].Zone, "")),
			Hints: newHints(in[i].Hints),
		})
	}
}

// endpointAddr takes the first address, the only one that Kubernetes gives a
// meaning, and refuses those that an API server refuses.
func endpointAddr(addresses []string, family dataplane.Family) (netip.Addr, error) {
	if len(addresses) == 0 {
		return netip.Addr{}, fmt.Errorf("there is no address")
	}
	addr, err := ParseAddr(addresses[0])
	if err != nil {
		return netip.Addr{}, err
	}
	if dataplane.FamilyOf(addr) != family {
		return netip.Addr{}, fmt.Errorf("%s is not of family %s, the addressType of the slice", addr, family)
	}
	if addr.IsUnspecified() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() {
		return netip.Addr{}, fmt.Errorf("%s cannot be an endpoint: unspecified, loopback, link-local or multicast", addr)
	}
	return addr, nil
}

func newHints(in *discoveryv1.EndpointHints) *Hints {
	if in == nil || len(in.ForZones)+len(in.ForNodes) == 0 {
		return nil
	}
	out := &Hints{}
	for _, zone := range in.ForZones {
		out.Zones = append(out.Zones, intern(zone.Name))
	}
	for _, node := range in.ForNodes {
		out.Nodes = append(out.Nodes, intern(node.Name))
	}
	return out
}

// value returns what p points to, or absent if p is nil.
func value[T any](p *T, absent T) T {
	if p == nil {
		return absent
	}
	return *p
}
