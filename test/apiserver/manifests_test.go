// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestManifests has the API server check every overlay as it would when it is applied.
func TestManifests(t *testing.T) {
	r := newRig(t)
	overlays, err := filepath.Glob("../../deploy/overlays/*/kustomization.yaml")
	r.must(err)
	if len(overlays) < 4 {
		t.Fatalf("overlays %v", overlays)
	}
	for _, file := range append(overlays, "../../deploy/base/kustomization.yaml") {
		dir := filepath.Dir(file)
		out, err := r.kubectl(t.Context(), "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-k", dir)
		if err != nil {
			t.Errorf("%s: %v", dir, err)
			continue
		}
		if !strings.Contains(out, "daemonset.apps/veridict") || !strings.Contains(out, "serverside-applied (server dry run)") {
			t.Errorf("%s:\n%s", dir, out)
		}
	}
}

// TestPatchOfKubeProxy applies the patch of the A/B overlay to kubeadm's DaemonSet.
func TestPatchOfKubeProxy(t *testing.T) {
	r := newRig(t)
	file := filepath.Join(t.TempDir(), "kube-proxy.yaml")
	r.must(os.WriteFile(file, []byte(`apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec:
      nodeSelector: {kubernetes.io/os: linux}
      containers: [{name: kube-proxy, image: kube-proxy}]
`), 0o600))
	_, err := r.kubectl(t.Context(), "apply", "-f", file)
	r.must(err)
	t.Cleanup(func() {
		if _, err := r.kubectl(t.Context(), "delete", "--wait=false", "-f", file); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	_, err = r.kubectl(t.Context(), "--namespace", "kube-system", "patch", "daemonset", "kube-proxy", "--patch-file", "../../deploy/overlays/ab/kube-proxy.yaml")
	r.must(err)
	out, err := r.kubectl(t.Context(), "--namespace", "kube-system", "get", "daemonset", "kube-proxy", "--output", "yaml")
	r.must(err)
	if !strings.Contains(out, "key: veridict.dev/proxy") || !strings.Contains(out, "operator: NotIn") || !strings.Contains(out, "kubernetes.io/os: linux") {
		t.Errorf("the patched DaemonSet:\n%s", out)
	}
}
