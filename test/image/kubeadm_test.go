// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// kubeadmConfig is what kubeadm 1.37 writes into the ConfigMap kube-proxy, in the mode
// that most clusters have.
const kubeadmConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null, udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
featureGates: {SomeGate: true}
healthzBindAddress: ""
hostnameOverride: ""
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: true, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, udpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: ""
mode: iptables
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
`

// renderDaemonSet is what kubectl makes of an overlay.
func renderDaemonSet(t *testing.T, overlay string) *appsv1.DaemonSet {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "kubectl", "kustomize", filepath.Join(repository, "deploy/overlays", overlay)).Output()
	if err != nil {
		t.Fatalf("kubectl kustomize %s: %v", overlay, err)
	}
	for document := range bytes.SplitSeq(out, []byte("\n---\n")) {
		var ds appsv1.DaemonSet
		if bytes.Contains(document, []byte("\nkind: DaemonSet\n")) {
			if err := yaml.UnmarshalStrict(document, &ds); err != nil {
				t.Fatalf("%s: %v", overlay, err)
			}
			return &ds
		}
	}
	t.Fatalf("%s has no DaemonSet", overlay)
	return nil
}

// TestKubeadm runs the overlay with kube-proxy's own configuration, which it takes as it
// is and says once what is ignored.
func TestKubeadm(t *testing.T) {
	r := newRig(t)
	r.volumes["config"] = t.TempDir()
	if err := os.WriteFile(filepath.Join(r.volumes["config"], "config.conf"), []byte(kubeadmConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	pod := renderDaemonSet(t, "kubeadm").Spec.Template.Spec
	if c := r.start("kubeadm-init", &pod.InitContainers[0]); c.wait() != nil {
		t.Fatal("the init container:", c.output())
	}
	c := r.start("kubeadm", &pod.Containers[0], r.extra...)
	r.await(func() string {
		if err := r.ask(); err != nil {
			return err.Error()
		}
		return ""
	})
	if n := strings.Count(c.output(), "have no meaning here"); n != 1 ||
		!strings.Contains(c.output(), "mode iptables, featureGates.SomeGate, ipvs.strictARP") {
		t.Errorf("%d warnings about what is ignored:\n%s", n, c.output())
	}
	if err := c.terminate(); err != nil {
		t.Error("veridict ended with", err)
	}
}

// TestTakeOver does what deploy/MIGRATING.md does with kubectl exec: beside the running
// veridict, with no more than its capabilities, kube-proxy's rules are removed.
func TestTakeOver(t *testing.T) {
	r := newRig(t)
	for _, args := range [][]string{
		{"nft", "add table ip kube-proxy { chain nat-prerouting { type nat hook prerouting priority -100; }; }"},
		{"iptables-nft", "-t", "nat", "-N", "KUBE-SERVICES"},
		{"iptables-nft", "-t", "nat", "-A", "PREROUTING", "-j", "KUBE-SERVICES"},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	agent := r.start("veridict", r.main(), r.extra...)
	serves := func() string {
		if err := r.ask(); err != nil {
			return err.Error()
		}
		return ""
	}
	r.await(serves)
	within := r.main()
	within.Args = []string{"cleanup", "--kube-proxy"}
	if c := r.start("cleanup", within); c.wait() != nil {
		t.Fatal("cleanup --kube-proxy:", c.output())
	}
	out, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("kube-proxy")) || bytes.Contains(out, []byte("KUBE-SERVICES")) ||
		!bytes.Contains(out, []byte("table ip veridict")) {
		t.Errorf("rules: %v\n%s", err, out)
	}
	r.await(serves)
	if err := agent.terminate(); err != nil {
		t.Error("veridict ended with", err)
	}
}
