// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// veridictConfiguration is the second document of a file.
type veridictConfiguration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Layout     Layout `json:"layout,omitempty"`
	// LocalhostNodePorts has NodePorts answer on loopback addresses that
	// nodePortAddresses names, and rejects them on others.
	LocalhostNodePorts bool `json:"localhostNodePorts,omitempty"`
	Affinity           struct {
		// MaxPins is the size of each map of session affinity.
		MaxPins *int `json:"maxPins,omitempty"`
	} `json:"affinity,omitzero"`
	Observe observeConfiguration `json:"observe,omitzero"`
	Metrics metricsConfiguration `json:"metrics,omitzero"`
}

const (
	kubeProxyVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kubeProxyKind    = "KubeProxyConfiguration"
	veridictVersion  = "veridict.dev/v1alpha1"
	veridictKind     = "VeridictConfiguration"
)

func readFile(path string) (kubeproxy.KubeProxyConfiguration, veridictConfiguration, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return kubeproxy.KubeProxyConfiguration{}, veridictConfiguration{}, fmt.Errorf("read configuration: %w", err)
	}
	kube, own, mistakes := decode(text)
	if len(mistakes) > 0 {
		return kube, own, &Invalid{Where: path, Mistakes: mistakes}
	}
	return kube, own, nil
}

// decode takes the documents of a file apart.
func decode(text []byte) (kube kubeproxy.KubeProxyConfiguration, own veridictConfiguration, mistakes []string) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	seen := map[string]bool{}
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return kube, own, mistakes
		}
		if err != nil {
			return kube, own, append(mistakes, fmt.Sprintf("document %d: %v", number, err))
		}
		kind, errs := decodeDocument(document, &kube, &own)
		if kind != "" && seen[kind] {
			errs = append(errs, "a second "+kind)
		}
		seen[kind] = true
		for _, err := range errs {
			mistakes = append(mistakes, fmt.Sprintf("document %d: %s", number, err))
		}
	}
}

// decodeDocument returns the kind that the document is of; empty for a document
// that holds nothing.
func decodeDocument(text []byte, kube *kubeproxy.KubeProxyConfiguration, own *veridictConfiguration) (string, []string) {
	converted, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		message := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
		return "", []string{strings.ReplaceAll(message, "\n", " ")}
	}
	if bytes.Equal(converted, []byte("null")) {
		return "", nil
	}
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(converted, &head); err != nil {
		return "", []string{err.Error()}
	}
	switch {
	case head.APIVersion == kubeProxyVersion && head.Kind == kubeProxyKind:
		return head.Kind, decodeStrict(converted, kube)
	case head.APIVersion == veridictVersion && head.Kind == veridictKind:
		return head.Kind, decodeStrict(converted, own)
	default:
		return "", []string{fmt.Sprintf("apiVersion %q, kind %q: want %s, %s or %s, %s",
			head.APIVersion, head.Kind, kubeProxyVersion, kubeProxyKind, veridictVersion, veridictKind)}
	}
}

func decodeStrict(text []byte, into any) []string {
	unknown, err := json.UnmarshalStrict(text, into)
	if err != nil {
		return []string{err.Error()}
	}
	var mistakes []string
	for _, err := range unknown {
		mistakes = append(mistakes, err.Error())
	}
	return mistakes
}
