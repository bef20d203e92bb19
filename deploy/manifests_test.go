// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/veridict/veridict/control/config"
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
	// What patches say beside fields.
	text = bytes.ReplaceAll(text, []byte("$patch: delete"), nil)
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

// TestPods checks how every overlay's Pods are run.
func TestPods(t *testing.T) {
	t.Parallel()
	for _, overlay := range overlays(t) {
		sets := find[*appsv1.DaemonSet](render(t, overlay))
		if len(sets) != 1 {
			t.Fatalf("%s: %d DaemonSets", overlay, len(sets))
		}
		pod := sets[0].Spec.Template.Spec
		if !pod.HostNetwork || pod.HostPID || pod.HostIPC || pod.PriorityClassName != "system-node-critical" ||
			sets[0].Namespace != "kube-system" || pod.NodeSelector["kubernetes.io/os"] != "linux" ||
			!cmp.Equal(pod.Tolerations, []v1.Toleration{{Operator: v1.TolerationOpExists}}) {
			t.Errorf("%s: %+v", overlay, pod)
		}
		for name, value := range sets[0].Spec.Selector.MatchLabels {
			if sets[0].Spec.Template.Labels[name] != value {
				t.Errorf("%s: the Pods do not have the label %s=%s", overlay, name, value)
			}
		}
		for _, volume := range pod.Volumes {
			mounted := func(c v1.Container) bool {
				return slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == volume.Name })
			}
			if !slices.ContainsFunc(slices.Concat(pod.InitContainers, pod.Containers), mounted) {
				t.Errorf("%s: nobody mounts %s", overlay, volume.Name)
			}
		}
	}
}

// TestSecurity fixes what each container may do: nothing but the init container, which
// ends in a moment, is privileged.
func TestSecurity(t *testing.T) {
	t.Parallel()
	unprivileged := func(capabilities ...v1.Capability) *v1.SecurityContext {
		return &v1.SecurityContext{
			Privileged: new(false), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities:    &v1.Capabilities{Drop: []v1.Capability{"ALL"}, Add: capabilities},
			AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined},
			SELinuxOptions:  &v1.SELinuxOptions{Type: "spc_t"},
		}
	}
	agent := map[string]*v1.SecurityContext{
		"init":     {Privileged: new(true), ReadOnlyRootFilesystem: new(true)},
		"veridict": unprivileged("NET_ADMIN", "BPF", "PERFMON"),
	}
	want := map[string]map[string]*v1.SecurityContext{
		"base": agent, "overlays/ab": agent, "overlays/kind": agent, "overlays/kubeadm": agent,
		"overlays/uninstall": {"cleanup": unprivileged("NET_ADMIN", "BPF"), "done": unprivileged("NET_ADMIN", "BPF")},
	}
	got := map[string]map[string]*v1.SecurityContext{}
	for _, overlay := range overlays(t) {
		pod := find[*appsv1.DaemonSet](render(t, overlay))[0].Spec.Template.Spec
		got[overlay] = map[string]*v1.SecurityContext{}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			got[overlay][c.Name] = c.SecurityContext
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what containers may do (-want +got):\n%s", diff)
	}
}

// TestLifecycle: an update goes on only behind a Pod that serves, and one that hangs is
// started again.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	set := find[*appsv1.DaemonSet](render(t, "base"))[0]
	if rolling := set.Spec.UpdateStrategy.RollingUpdate; rolling == nil || rolling.MaxUnavailable.String() != "10%" {
		t.Errorf("update strategy %+v", set.Spec.UpdateStrategy)
	}
	c := set.Spec.Template.Spec.Containers[0]
	for want, probe := range map[string]*v1.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != want || probe.HTTPGet.Port.String() != "healthz" {
			t.Errorf("probe of %s: %+v", want, probe)
		}
	}
	if c.StartupProbe == nil || c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || len(c.Resources.Limits) > 0 {
		t.Errorf("start %+v, resources %+v", c.StartupProbe, c.Resources)
	}
	port := slices.IndexFunc(c.Ports, func(p v1.ContainerPort) bool { return p.Name == "healthz" })
	if port < 0 || c.Ports[port].ContainerPort != 10256 {
		t.Errorf("ports %+v", c.Ports)
	}
}

// TestPrivilegesHaveReasons: each one stands below a comment that says why.
func TestPrivilegesHaveReasons(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("base/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for _, want := range []string{"- NET_ADMIN", "- BPF", "- PERFMON", "appArmorProfile:", "seLinuxOptions:"} {
		at := slices.IndexFunc(lines, func(l string) bool { return strings.TrimSpace(l) == want })
		if at < 1 || !strings.HasPrefix(strings.TrimSpace(lines[at-1]), "# ") {
			t.Errorf("%s has no reason", want)
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

// TestConfiguration has the product read the configuration that the base ships.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	maps := find[*v1.ConfigMap](render(t, "base"))
	if len(maps) != 1 {
		t.Fatalf("%d ConfigMaps", len(maps))
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(maps[0].Data["config.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
	configuration := config.AddFlags(flags)
	if err := flags.Parse([]string{"--config", file, "--node-name", "node"}); err != nil {
		t.Fatal(err)
	}
	got, warnings, err := configuration.Load(nil)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v, warnings %v", err, warnings)
	}
	if !strings.HasSuffix(got.Healthz, ":10256") || !strings.HasSuffix(got.Metrics.Address, ":10249") {
		t.Errorf("%+v", got)
	}
}

// TestKindCluster: kind starts a cluster without kube-proxy, by this file.
func TestKindCluster(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("overlays/kind/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// The few fields that are used.
	var cluster struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Networking struct {
			KubeProxyMode string `json:"kubeProxyMode"`
		} `json:"networking"`
		Nodes []struct {
			Role string `json:"role"`
		} `json:"nodes"`
	}
	if err := yaml.UnmarshalStrict(text, &cluster); err != nil {
		t.Fatal(err)
	}
	if cluster.Networking.KubeProxyMode != "none" || len(cluster.Nodes) < 2 || cluster.Nodes[0].Role != "control-plane" {
		t.Errorf("%+v", cluster)
	}
}

// TestKubeadmHasOneConfiguration: the base's own, which nobody would read, is not there.
func TestKubeadmHasOneConfiguration(t *testing.T) {
	t.Parallel()
	objects := render(t, "overlays/kubeadm")
	if maps := find[*v1.ConfigMap](objects); len(maps) > 0 {
		t.Errorf("ConfigMaps %v", maps)
	}
	pod := find[*appsv1.DaemonSet](objects)[0].Spec.Template.Spec
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, mount := range c.VolumeMounts {
			if mount.MountPath == "/etc/veridict" {
				t.Errorf("container %s mounts %+v", c.Name, mount)
			}
		}
	}
}
