// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/veridict/veridict/dataplane"
)

// corpus is the scenario file.
type corpus struct {
	Profiles  map[string]map[string]any
	Scenarios []scenario
}

type scenario struct {
	ID        string
	Profile   string
	Overrides map[string]any
	Steps     []step
}

type step struct {
	Name           string
	Services       []map[string]any
	EndpointSlices []map[string]any
	Flows          []flow
	NodeChanges    map[string]any
	RestartAgent   bool
	PauseSeconds   float64
	NeedsHistory   bool
}

type flow struct {
	Name, Client, SourceIP, Protocol, DestIP string
	DestPort                                 uint16
	Expected                                 struct {
		Verdict   string
		Endpoints []string
	}
	Masquerade           *bool
	MasqueradeByEndpoint map[string]bool
	SameClientsAs        string
	SourcePort           int
}

func loadCorpus(t *testing.T) corpus {
	t.Helper()
	text, err := os.ReadFile("scenarios.json")
	if err != nil {
		t.Fatal(err)
	}
	var c corpus
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCopyIsUpToDate(t *testing.T) {
	t.Parallel()
	const origin = "../../../shared/flowcheck/scenarios.json"
	want, err := os.ReadFile(origin)
	if errors.Is(err, fs.ErrNotExist) {
		t.Logf("there is no %s to compare with", origin)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("scenarios.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("scenarios.json is not %s any more: copy it", origin)
	}
}

// node are the settings of a node, by the names of the scenario file.
type node map[string]any

func nodeOf(c *corpus, s *scenario) node {
	n := maps.Clone(c.Profiles[s.Profile])
	maps.Copy(n, s.Overrides)
	return n
}

func (n node) with(changes map[string]any) node {
	n = maps.Clone(n)
	maps.Copy(n, changes)
	return n
}

func (n node) text(key string) string { return n[key].(string) }

func (n node) addresses() []netip.Addr {
	var addrs []netip.Addr
	for _, text := range n["localAddresses"].([]any) {
		addrs = append(addrs, netip.MustParseAddr(text.(string)))
	}
	return addrs
}

func (n node) family() dataplane.Family {
	if n.text("ipFamily") == dataplane.IPv6.String() {
		return dataplane.IPv6
	}
	return dataplane.IPv4
}

// object returns the Node.
func (n node) object() map[string]any {
	detect := n["detectLocal"].(map[string]any)
	spec := map[string]any{}
	if cidrs, ok := detect["podCIDRs"]; ok {
		spec["podCIDRs"] = cidrs
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": n["nodeName"], "labels": n["topologyLabels"]},
		"spec":     spec,
		"status":   map[string]any{"addresses": []any{map[string]any{"type": "InternalIP", "address": n["nodeIP"]}}},
	}
}

// config returns the text of a KubeProxyConfiguration.
func (n node) config() string {
	detect := n["detectLocal"].(map[string]any)
	mode := detect["mode"]
	if mode == "none" {
		mode = "ClusterCIDR"
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"hostnameOverride": n["nodeName"], "detectLocalMode": mode, "clusterCIDR": detect["cidr"],
		"detectLocal": map[string]any{
			"bridgeInterface": detect["bridgeInterface"], "interfaceNamePrefix": detect["interfaceNamePrefix"],
		},
		"nodePortAddresses": n["nodePortAddresses"],
		"nftables":          map[string]any{"masqueradeAll": n["masqueradeAll"]},
	})
	if err != nil {
		panic(err)
	}
	return strings.ReplaceAll(string(text), "null", `""`)
}

// write writes the objects of a step as manifests.
func (s *step) write(t *testing.T, dir string, n node) {
	t.Helper()
	objects := []map[string]any{n.object()}
	if cidrs := n["serviceCIDRs"].([]any); len(cidrs) > 0 {
		objects = append(objects, map[string]any{
			"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
			"metadata": map[string]any{"name": "kubernetes"}, "spec": map[string]any{"cidrs": cidrs},
		})
	}
	typed := func(list []map[string]any, version, kind string) {
		for _, object := range list {
			object = maps.Clone(object)
			object["apiVersion"], object["kind"] = version, kind
			objects = append(objects, object)
		}
	}
	typed(s.Services, "v1", "Service")
	typed(s.EndpointSlices, "discovery.k8s.io/v1", "EndpointSlice")
	var text strings.Builder
	for _, object := range objects {
		encoded, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "---\n%s\n", encoded)
	}
	if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// isTracked says whether the flow goes on with a connection of an earlier step.
func (s *step) isTracked(f *flow) bool { return s.NeedsHistory && f.SourcePort != 0 }

// hasAffinity says whether a Service of the step keeps the flow's clients at their
// endpoint.
func (s *step) hasAffinity(f *flow) bool {
	for _, service := range s.Services {
		spec := service["spec"].(map[string]any)
		if spec["sessionAffinity"] != "ClientIP" {
			continue
		}
		text := fmt.Sprint(spec["clusterIP"], spec["clusterIPs"], spec["externalIPs"], service["status"])
		vip := strings.Contains(text, f.DestIP)
		for _, p := range spec["ports"].([]any) {
			port := p.(map[string]any)
			if vip && port["port"] == float64(f.DestPort) || !vip && port["nodePort"] == float64(f.DestPort) {
				return true
			}
		}
	}
	return false
}
