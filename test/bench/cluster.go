// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/veridict/veridict/dataplane"
)

// servicesPerFile is the size of one manifest file.
const servicesPerFile = 1000

// clusterIP and endpoint give each Service its addresses. They exist nowhere:
// nothing is sent.
func clusterIP(service int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(96 + service>>16), byte(service >> 8), byte(service)})
}

func endpoint(service, n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{byte(100 + n/256), byte(n), byte(service >> 8), byte(service)}), uint16(8080+service>>16))
}

// servicePort returns the ServicePort that the manifests of a Service lead to.
func servicePort(service, endpoints int) dataplane.ServicePort {
	sp := dataplane.ServicePort{
		Key: dataplane.ServicePortKey{
			ServicePortName: dataplane.ServicePortName{Namespace: "bench", Name: fmt.Sprintf("service-%d", service), Port: "http", Protocol: dataplane.TCP},
			Family:          dataplane.IPv4,
		},
		ClusterIP: clusterIP(service), Port: 80,
	}
	for n := range endpoints {
		sp.Endpoints = append(sp.Endpoints, dataplane.Endpoint{Addr: endpoint(service, n)})
	}
	return sp
}

func state(services, endpoints int) dataplane.State {
	s := dataplane.State{
		Settings:     dataplane.Settings{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}},
		ServicePorts: make(map[dataplane.ServicePortKey]dataplane.ServicePort, services),
	}
	for service := range services {
		sp := servicePort(service, endpoints)
		s.ServicePorts[sp.Key] = sp
	}
	return s
}

// writeManifests writes a directory of YAML with so many Services.
func writeManifests(dir string, services, endpoints int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for first := 0; first < services; first += servicesPerFile {
		path := filepath.Join(dir, fmt.Sprintf("services-%05d.yaml", first))
		if err := writeFile(path, first, min(first+servicesPerFile, services), endpoints); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	cidr := "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata:\n  name: kubernetes\nspec:\n  cidrs: [10.96.0.0/12]\n"
	return os.WriteFile(filepath.Join(dir, "servicecidr.yaml"), []byte(cidr), 0o644)
}

func writeFile(path string, first, end, endpoints int) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	w := bufio.NewWriter(file)
	for service := first; service < end; service++ {
		fmt.Fprintf(w, serviceManifest, service, clusterIP(service))
		fmt.Fprintf(w, sliceManifest, service, endpoint(service, 0).Port())
		for n := range endpoints {
			fmt.Fprintf(w, endpointManifest, endpoint(service, n).Addr())
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return file.Close()
}

const (
	serviceManifest = `---
apiVersion: v1
kind: Service
metadata:
  namespace: bench
  name: service-%[1]d
  creationTimestamp: "2026-01-01T00:00:00Z"
spec:
  type: ClusterIP
  clusterIP: %[2]s
  clusterIPs: [%[2]s]
  ipFamilies: [IPv4]
  selector:
    app: service-%[1]d
  ports:
  - name: http
    protocol: TCP
    port: 80
    targetPort: http
`
	sliceManifest = `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  namespace: bench
  name: service-%[1]d-a
  labels:
    kubernetes.io/service-name: service-%[1]d
addressType: IPv4
ports:
- name: http
  protocol: TCP
  port: %[2]d
endpoints:
`
	endpointManifest = `- addresses: [%s]
  conditions: {ready: true, serving: true, terminating: false}
  nodeName: other
`
)
