// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/compare/testbed/testmain"
	"github.com/veridict/veridict/control/api"
	"github.com/veridict/veridict/dataplane"
)

func TestMain(m *testing.M) { os.Exit(testmain.Run(m)) }

const objects = `apiVersion: v1
kind: Node
metadata: {name: node}
spec: {podCIDRs: [10.244.0.0/16]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.2.1]}]
`

// rig is a node with one client and one endpoint, and a place for everything that the
// DaemonSet mounts.
type rig struct {
	t       *testing.T
	root    string
	volumes host
	clients *testbed.Pod
	extra   []string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	testmain.NeedRoot(t)
	r := &rig{t: t}
	var err error
	if r.root, err = rootFS(); err != nil {
		t.Fatal("unpack the image:", err)
	}
	dir := t.TempDir()
	r.volumes = host{
		"config": filepath.Join(repository, "deploy/base"), "run": filepath.Join(dir, "run"), "bpf": filepath.Join(dir, "bpf"),
		"cgroup": "/sys/fs/cgroup",
	}
	for name, path := range r.volumes {
		if r.volumes[name], err = filepath.Abs(path); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(r.volumes[name], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// A directory as systemd leaves it: what a container mounts in it can come back.
	bpf := r.volumes["bpf"]
	if err := errors.Join(unix.Mount(bpf, bpf, "", unix.MS_BIND, ""), unix.Mount("", bpf, "", unix.MS_SHARED, "")); err != nil {
		t.Fatal("share a directory:", err)
	}
	t.Cleanup(func() {
		// What the init container has mounted, and the directory.
		for unix.Unmount(bpf, unix.MNT_DETACH) == nil {
			continue
		}
	})
	manifests := filepath.Join(r.volumes["run"], "manifests")
	if err := os.MkdirAll(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(manifests, "shop.yaml"), []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	// The kubelet sets the OOM score of a critical Pod, which not every machine lets tests do.
	r.extra = []string{"--manifests", "/run/veridict/manifests", "--oom-score-adj", "0"}
	r.network()
	t.Cleanup(func() { _ = exec.Command("nft", "flush", "ruleset").Run() })
	r.initialise()
	return r
}

// initialise runs the init container, which mounts the node's BPF file system.
func (r *rig) initialise() {
	r.t.Helper()
	c := r.start("init", &daemonSet(r.t, "deploy/base/daemonset.yaml").Spec.Template.Spec.InitContainers[0])
	if err := c.wait(); err != nil {
		r.t.Fatalf("the init container: %v: %s", err, c.output())
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(r.volumes["bpf"], &fs); err != nil || fs.Type != unix.BPF_FS_MAGIC {
		r.t.Fatalf("the node has no BPF file system: %v, type %#x: %s", err, fs.Type, c.output())
	}
}

func (r *rig) network() {
	r.t.Helper()
	node, err := testbed.CurrentNamespace()
	if err != nil {
		r.t.Fatal(err)
	}
	network, err := testbed.NewNetwork(node, testbed.DefaultPlan())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := errors.Join(network.Close(), node.Close()); err != nil {
			r.t.Error(err)
		}
	})
	pod := func(name, addr string) *testbed.Pod {
		made, err := network.AddPod(r.t.Context(), testbed.PodOptions{Name: name, Addrs: []netip.Addr{netip.MustParseAddr(addr)}})
		if err != nil {
			r.t.Fatal(err)
		}
		return made
	}
	r.clients = pod("clients", "10.244.1.1")
	server, err := pod("endpoints", "10.244.2.1").Serve(dataplane.TCP, netip.MustParseAddrPort("10.244.2.1:8080"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = server.Close() })
}

// ask opens one connection to the Service.
func (r *rig) ask() error {
	return r.clients.Do(func() error {
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
		defer cancel()
		_, err := testbed.Ask(ctx, dataplane.VIP{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: dataplane.TCP, Port: 80})
		return err
	})
}

// await polls until check returns nothing.
func (r *rig) await(check func() string) {
	r.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for wrong := check(); wrong != ""; wrong = check() {
		if time.Now().After(deadline) {
			r.t.Fatal(wrong)
		}
		<-pause.C
	}
}

func (r *rig) main() *v1.Container {
	return &daemonSet(r.t, "deploy/base/daemonset.yaml").Spec.Template.Spec.Containers[0]
}

// start runs a container of the DaemonSet.
func (r *rig) start(name string, c *v1.Container, extra ...string) *container {
	r.t.Helper()
	return runContainer(r.t, name, runtimeConfig(r.t, r.root, c, r.volumes, extra...))
}

// TestDaemonSet serves, observes, ends at once and leaves its rules; what uninstalls it
// removes them.
func TestDaemonSet(t *testing.T) {
	r := newRig(t)
	c := r.start("veridict", r.main(), r.extra...)
	r.await(func() string {
		if err := r.ask(); err != nil {
			return err.Error()
		}
		return ""
	})
	client := api.NewClient(filepath.Join(r.volumes["run"], "veridict.sock"))
	defer client.Close()
	r.await(func() string {
		status, err := client.Status(t.Context())
		if err != nil {
			return err.Error()
		}
		if status.Probes.Mode != "netfilter" || status.Probes.PinPath != "/sys/fs/bpf/veridict" {
			return fmt.Sprintf("probes: %+v", status.Probes)
		}
		return ""
	})
	if _, err := os.Stat(filepath.Join(r.volumes["bpf"], "veridict")); err != nil {
		t.Error("nothing is pinned on the host:", err)
	}
	for line := range strings.Lines(c.output()) {
		// --oom-score-adj is this test's.
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") && !strings.Contains(line, "--oom-score-adj\"") {
			t.Errorf("the log has %s", line)
		}
	}
	if out, err := exec.Command("nft", "list", "map", "ip", "veridict", "service-ips").CombinedOutput(); err != nil || !strings.Contains(string(out), "10.96.0.10") {
		t.Errorf("the rules: %v\n%s", err, out)
	}
	begin := time.Now()
	if err := c.terminate(); err != nil {
		t.Error("veridict ended with", err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("it took %s to end", took)
	}
	if err := r.ask(); err != nil {
		t.Error("the rules are gone:", err)
	}
	uninstall := daemonSet(t, "deploy/overlays/uninstall/daemonset.yaml").Spec.Template.Spec
	if err := r.start("uninstall", &uninstall.InitContainers[0]).wait(); err != nil {
		t.Fatal("the uninstaller:", err)
	}
	done := r.start("done", &uninstall.Containers[0])
	r.await(func() string {
		if !strings.Contains(done.output(), "all is removed") {
			return "the uninstaller does not wait"
		}
		return ""
	})
	if err := done.terminate(); err != nil {
		t.Error("the uninstaller ended with", err)
	}
	if out, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil || strings.Contains(string(out), "veridict") {
		t.Errorf("rules are left: %v\n%s", err, out)
	}
	if left, err := filepath.Glob(filepath.Join(r.volumes["bpf"], "veridict", "*")); err != nil || len(left) > 0 {
		t.Errorf("pins are left: %v, %v", left, err)
	}
}

// TestEachCapabilityIsNeeded takes one away at a time, and wants to be told which.
func TestEachCapabilityIsNeeded(t *testing.T) {
	r := newRig(t)
	added := r.main().SecurityContext.Capabilities.Add
	for i, capability := range added {
		c := r.main()
		c.SecurityContext.Capabilities.Add = slices.Delete(slices.Clone(added), i, i+1)
		got := r.start("without-"+strings.ToLower(string(capability)), c, r.extra...)
		r.await(func() string {
			if !strings.Contains(got.output(), "CAP_"+string(capability)) {
				return "without " + string(capability) + " nobody names it"
			}
			return ""
		})
		if capability == "NET_ADMIN" {
			if err := got.wait(); err == nil {
				t.Error("without NET_ADMIN it goes on")
			}
			continue
		}
		r.await(func() string {
			if err := r.ask(); err != nil {
				return "without " + string(capability) + ": " + err.Error()
			}
			return ""
		})
		if err := got.terminate(); err != nil {
			t.Error(err)
		}
	}
}
