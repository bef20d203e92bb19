// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/veridict/veridict/dataplane"
)

// servicePort is what the demo expects of one frontend. It is derived from the
// manifests here, and not by the proxy's own code, so that the two check each
// other.
type servicePort struct {
	namespace, name, portName string
	vip                       dataplane.VIP
	// endpoints are sorted, each once.
	endpoints []netip.AddrPort
}

// listener is a socket that a pod must have.
type listener struct {
	protocol dataplane.Protocol
	addr     netip.AddrPort
}

// shop is what the manifests say: frontends to connect to, and the pods behind
// them by name. Pods that are not ready are among the pods, but not among the
// endpoints.
type shop struct {
	servicePorts []servicePort
	pods         map[string][]listener
}

// manifests are the objects of a directory that the demo looks at.
type manifests struct {
	services []corev1.Service
	slices   []discoveryv1.EndpointSlice
}

// loadShop reads all manifests of a directory.
func loadShop(files fs.FS) (*shop, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	var objects manifests
	for _, name := range names {
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		if err := objects.add(content); err != nil {
			return nil, fmt.Errorf("read manifests: %s: %w", name, err)
		}
	}
	return objects.shop()
}

// add parses the documents of one file, and passes over kinds that it does not
// need.
func (m *manifests) add(content []byte) error {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal(document, &meta); err != nil {
			return err
		}
		switch meta.Kind {
		case "Service":
			var service corev1.Service
			if err := yaml.UnmarshalStrict(document, &service); err != nil {
				return err
			}
			m.services = append(m.services, service)
		case "EndpointSlice":
			var slice discoveryv1.EndpointSlice
			if err := yaml.UnmarshalStrict(document, &slice); err != nil {
				return err
			}
			m.slices = append(m.slices, slice)
		}
	}
}

func (m *manifests) shop() (*shop, error) {
	result := &shop{pods: map[string][]listener{}}
	for _, service := range m.services {
		for _, ip := range service.Spec.ClusterIPs {
			addr, err := netip.ParseAddr(ip)
			if err != nil {
				return nil, fmt.Errorf("service %s: %w", service.Name, err)
			}
			for _, port := range service.Spec.Ports {
				endpoints, err := m.endpoints(service, port, addr.Is4(), result.pods)
				if err != nil {
					return nil, fmt.Errorf("service %s: %w", service.Name, err)
				}
				protocol, err := protocolOf(port.Protocol)
				if err != nil {
					return nil, fmt.Errorf("service %s: %w", service.Name, err)
				}
				result.servicePorts = append(result.servicePorts, servicePort{
					namespace: service.Namespace,
					name:      service.Name,
					portName:  port.Name,
					vip:       dataplane.VIP{Addr: addr, Protocol: protocol, Port: uint16(port.Port)},
					endpoints: endpoints,
				})
			}
		}
	}
	for name, listeners := range result.pods {
		slices.SortFunc(listeners, compareListeners)
		result.pods[name] = slices.Compact(listeners)
	}
	return result, nil
}

// endpoints returns the ready endpoints of a port in one family, and adds all
// of them to the pods.
func (m *manifests) endpoints(service corev1.Service, port corev1.ServicePort, v4 bool, pods map[string][]listener) ([]netip.AddrPort, error) {
	protocol, err := protocolOf(port.Protocol)
	if err != nil {
		return nil, err
	}
	ready := map[netip.AddrPort]bool{}
	for _, slice := range m.slices {
		if slice.Namespace != service.Namespace || slice.Labels[discoveryv1.LabelServiceName] != service.Name {
			continue
		}
		if (slice.AddressType == discoveryv1.AddressTypeIPv4) != v4 {
			continue
		}
		number, ok := portNumber(slice, port)
		if !ok {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			addr, err := netip.ParseAddr(endpoint.Addresses[0])
			if err != nil {
				return nil, err
			}
			if addr.Is4() != v4 {
				return nil, fmt.Errorf("endpoint %s is not of type %s", addr, slice.AddressType)
			}
			if endpoint.TargetRef == nil {
				return nil, fmt.Errorf("endpoint %s has no targetRef", addr)
			}
			at := netip.AddrPortFrom(addr, number)
			pods[endpoint.TargetRef.Name] = append(pods[endpoint.TargetRef.Name], listener{protocol, at})
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				ready[at] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(ready), netip.AddrPort.Compare), nil
}

// portNumber finds the port of a slice by name and protocol.
func portNumber(slice discoveryv1.EndpointSlice, port corev1.ServicePort) (uint16, bool) {
	for _, candidate := range slice.Ports {
		if candidate.Name != nil && candidate.Port != nil && candidate.Protocol != nil &&
			*candidate.Name == port.Name && *candidate.Protocol == port.Protocol {
			return uint16(*candidate.Port), true
		}
	}
	return 0, false
}

func protocolOf(protocol corev1.Protocol) (dataplane.Protocol, error) {
	switch protocol {
	case corev1.ProtocolTCP:
		return dataplane.TCP, nil
	case corev1.ProtocolUDP:
		return dataplane.UDP, nil
	default:
		return 0, fmt.Errorf("the demo has no endpoints for protocol %q", protocol)
	}
}

func compareListeners(a, b listener) int {
	return cmp.Or(cmp.Compare(a.protocol, b.protocol), a.addr.Compare(b.addr))
}

// title names a ServicePort in tables.
func (p *servicePort) title() string { return p.namespace + "/" + p.name + ":" + p.portName }
