// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// typed returns a value of the type that a manifest is of, nil for one that is no API
// object.
func typed(t *testing.T, apiVersion, kind string) runtime.Object {
	t.Helper()
	switch apiVersion + " " + kind {
	case "apps/v1 DaemonSet":
		return &appsv1.DaemonSet{}
	case "v1 ServiceAccount":
		return &v1.ServiceAccount{}
	case "v1 ConfigMap":
		return &v1.ConfigMap{}
	case "rbac.authorization.k8s.io/v1 ClusterRole":
		return &rbacv1.ClusterRole{}
	case "rbac.authorization.k8s.io/v1 ClusterRoleBinding":
		return &rbacv1.ClusterRoleBinding{}
	case "kustomize.config.k8s.io/v1beta1 Kustomization", "kind.x-k8s.io/v1alpha4 Cluster",
		"kubeproxy.config.k8s.io/v1alpha1 KubeProxyConfiguration", "veridict.dev/v1alpha1 VeridictConfiguration":
		return nil
	}
	t.Fatalf("a manifest of kind %s %s, which this test does not know", apiVersion, kind)
	return nil
}

// decode decodes each document strictly: an unknown field is a mistake.
func decode(t *testing.T, name string, text []byte) []runtime.Object {
	t.Helper()
	var objects []runtime.Object
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var head struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
		}
		if err := yaml.Unmarshal(document, &head); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		object := typed(t, head.APIVersion, head.Kind)
		if object == nil {
			continue
		}
		if err := yaml.UnmarshalStrict(document, object); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		objects = append(objects, object)
	}
	return objects
}

func TestEveryManifestDecodes(t *testing.T) {
	t.Parallel()
	n := 0
	for _, pattern := range []string{"base/*.yaml", "overlays/*/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			n += len(decode(t, file, text))
		}
	}
	if n < 7 {
		t.Errorf("only %d objects", n)
	}
}

// render returns what kubectl kustomize makes of an overlay.
func render(t *testing.T, overlay string) []runtime.Object {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "kubectl", "kustomize", overlay).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl kustomize %s: %v: %s", overlay, err, out)
	}
	return decode(t, overlay, out)
}

func overlays(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("overlays/*")
	if err != nil || len(found) < 4 {
		t.Fatal(found, err)
	}
	return append(found, "base")
}

func find[T runtime.Object](objects []runtime.Object) (found []T) {
	for _, object := range objects {
		if wanted, ok := object.(T); ok {
			found = append(found, wanted)
		}
	}
	return found
}

// TestPods checks what each Pod may do, in every overlay.
func TestPods(t *testing.T) {
	t.Parallel()
	for _, overlay := range overlays(t) {
		sets := find[*appsv1.DaemonSet](render(t, overlay))
		if len(sets) != 1 {
			t.Fatalf("%s: %d DaemonSets", overlay, len(sets))
		}
		pod := sets[0].Spec.Template.Spec
		if !pod.HostNetwork || pod.PriorityClassName != "system-node-critical" || sets[0].Namespace != "kube-system" ||
			!slices.ContainsFunc(pod.Tolerations, func(o v1.Toleration) bool { return o.Operator == v1.TolerationOpExists && o.Key == "" }) {
			t.Errorf("%s: %+v", overlay, pod)
		}
		allowed := []v1.Capability{"NET_ADMIN", "BPF", "PERFMON"}
		for _, c := range append(slices.Clone(pod.Containers), pod.InitContainers...) {
			security := c.SecurityContext
			if c.Name == "init" {
				continue
			}
			if *security.Privileged || *security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem ||
				!slices.Equal(security.Capabilities.Drop, []v1.Capability{"ALL"}) {
				t.Errorf("%s: container %s: %+v", overlay, c.Name, security)
			}
			for _, capability := range security.Capabilities.Add {
				if !slices.Contains(allowed, capability) {
					t.Errorf("%s: container %s has %s", overlay, c.Name, capability)
				}
			}
		}
	}
}

// TestCapabilitiesHaveReasons: each one stands below a comment that says why.
func TestCapabilitiesHaveReasons(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("base/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for _, capability := range []string{"NET_ADMIN", "BPF", "PERFMON"} {
		at := slices.IndexFunc(lines, func(l string) bool { return strings.TrimSpace(l) == "- "+capability })
		if at < 1 || !strings.HasPrefix(strings.TrimSpace(lines[at-1]), "# ") {
			t.Errorf("%s has no reason", capability)
		}
	}
}

func TestRights(t *testing.T) {
	t.Parallel()
	roles := find[*rbacv1.ClusterRole](render(t, "base"))
	if len(roles) != 1 {
		t.Fatalf("%d ClusterRoles", len(roles))
	}
	got := map[string]string{}
	for _, rule := range roles[0].Rules {
		for _, resource := range rule.Resources {
			got[resource] = strings.Join(rule.Verbs, ",")
		}
	}
	read := "get,list,watch"
	want := map[string]string{"services": read, "nodes": read, "endpointslices": read, "servicecidrs": read, "events": "create"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rights (-want +got):\n%s", diff)
	}
}

// TestOverlays checks what makes each one what it is.
func TestOverlays(t *testing.T) {
	t.Parallel()
	pod := func(overlay string) v1.PodSpec {
		return find[*appsv1.DaemonSet](render(t, "overlays/"+overlay))[0].Spec.Template.Spec
	}
	kubeadm := pod("kubeadm")
	for _, c := range []v1.Container{kubeadm.Containers[0], kubeadm.InitContainers[0]} {
		if !slices.Contains(c.Args, "--config=/var/lib/kube-proxy/config.conf") ||
			!slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.MountPath == "/var/lib/kube-proxy" }) {
			t.Errorf("kubeadm: %+v", c)
		}
	}
	if !slices.ContainsFunc(kubeadm.Volumes, func(v v1.Volume) bool { return v.ConfigMap != nil && v.ConfigMap.Name == "kube-proxy" }) {
		t.Errorf("kubeadm: volumes %+v", kubeadm.Volumes)
	}
	if got := pod("ab").NodeSelector; got["veridict.dev/proxy"] != "veridict" {
		t.Errorf("ab: node selector %v", got)
	}
	if from := pod("kind").Containers[0].EnvFrom; len(from) != 1 || !strings.HasPrefix(from[0].ConfigMapRef.Name, "veridict-apiserver-") {
		t.Errorf("kind: environment %+v", from)
	}
	for _, overlay := range []string{"kind", "kubeadm", "ab", "uninstall"} {
		if image := pod(overlay).Containers[0].Image; image != "veridict:dev" {
			t.Errorf("%s: image %s", overlay, image)
		}
	}
}

// TestConfiguration has the product read the configuration that the base ships; see
// also test/image.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	maps := find[*v1.ConfigMap](render(t, "base"))
	if len(maps) != 1 || !strings.Contains(maps[0].Data["config.yaml"], "kind: KubeProxyConfiguration") {
		t.Fatal(fmt.Sprint(maps))
	}
}
