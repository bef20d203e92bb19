// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
)

// copyManifests writes the files to a new directory, which is on the private
// /run of the isolated process and vanishes with it.
func copyManifests(files fs.FS) (string, error) {
	dir, err := os.MkdirTemp("/run", "veridict-demo-")
	if err != nil {
		return "", fmt.Errorf("copy manifests: %w", err)
	}
	if err := os.CopyFS(dir, files); err != nil {
		return dir, fmt.Errorf("copy manifests: %w", err)
	}
	return dir, nil
}

// scaler changes the EndpointSlice of one Service as a controller would.
type scaler struct {
	slice discoveryv1.EndpointSlice
	// endpoints has all that the Service can be scaled to.
	endpoints []discoveryv1.Endpoint
	port      uint16
}

// newScaler reads the slice in the file, and invents endpoints after its last
// one until there are largest.
func newScaler(files fs.FS, name string, largest int) (*scaler, error) {
	content, err := fs.ReadFile(files, name)
	if err != nil {
		return nil, fmt.Errorf("scale: %w", err)
	}
	s := &scaler{}
	if err := yaml.UnmarshalStrict(content, &s.slice); err != nil {
		return nil, fmt.Errorf("scale: %s: %w", name, err)
	}
	if len(s.slice.Endpoints) == 0 || len(s.slice.Ports) != 1 || s.slice.Ports[0].Port == nil {
		return nil, fmt.Errorf("scale: %s: want endpoints and one port", name)
	}
	s.port = uint16(*s.slice.Ports[0].Port)
	s.endpoints = s.slice.Endpoints
	for len(s.endpoints) < largest {
		next, err := following(s.endpoints[len(s.endpoints)-1], len(s.endpoints)+1)
		if err != nil {
			return nil, fmt.Errorf("scale: %s: %w", name, err)
		}
		s.endpoints = append(s.endpoints, next)
	}
	return s, nil
}

// following returns an endpoint with the next address.
func following(last discoveryv1.Endpoint, ordinal int) (discoveryv1.Endpoint, error) {
	addr, err := netip.ParseAddr(last.Addresses[0])
	if err != nil {
		return discoveryv1.Endpoint{}, err
	}
	next := *last.DeepCopy()
	next.Addresses = []string{addr.Next().String()}
	next.TargetRef.Name = fmt.Sprintf("scaled-%d", ordinal)
	return next, nil
}

// addrs returns the addresses of the first n endpoints.
func (s *scaler) addrs(n int) ([]netip.AddrPort, error) {
	var addrs []netip.AddrPort
	for _, endpoint := range s.endpoints[:n] {
		addr, err := netip.ParseAddr(endpoint.Addresses[0])
		if err != nil {
			return nil, fmt.Errorf("scale: %w", err)
		}
		addrs = append(addrs, netip.AddrPortFrom(addr, s.port))
	}
	return addrs, nil
}

// scale replaces the manifest by one with the first n endpoints: a new file is
// written beside and renamed, so that nobody reads half a file.
func (s *scaler) scale(dir, name string, n int) error {
	slice := *s.slice.DeepCopy()
	slice.Endpoints = s.endpoints[:n]
	content, err := yaml.Marshal(slice)
	if err != nil {
		return fmt.Errorf("scale: %w", err)
	}
	temporary := filepath.Join(dir, "."+name+".new")
	if err := os.WriteFile(temporary, content, 0o644); err != nil {
		return fmt.Errorf("scale: %w", err)
	}
	if err := os.Rename(temporary, filepath.Join(dir, name)); err != nil {
		return fmt.Errorf("scale: %w", err)
	}
	return nil
}
