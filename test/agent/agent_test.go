// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/compare/testbed/testmain"
	"github.com/veridict/veridict/control/api"
)

// program is the path of the program, built once for all tests.
var program = sync.OnceValues(func() (string, error) {
	// Private to this process, and gone with it.
	dir, err := os.MkdirTemp("/run", "veridict")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "veridict")
	out, err := exec.Command("go", "build", "-o", path, "../../cmd/veridict").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})

// node is where agents run, one at a time.
type node struct {
	*cluster
	manifests, pins, socket string
	client                  *api.Client
	agent                   *exec.Cmd
}

// newNode returns a node that has no rules, no connections and no agent yet.
func newNode(t *testing.T) *node {
	t.Helper()
	testmain.NeedRoot(t)
	n := &node{cluster: sharedCluster(t), manifests: t.TempDir(), pins: pinPath(t), socket: filepath.Join(t.TempDir(), "socket")}
	n.client = api.NewClient(n.socket)
	// A datagram from a source port of before would go on with its flow.
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.client.Close()
		nft(t, "flush ruleset")
	})
	return n
}

// pinPath returns a directory, not made yet, of a BPF file system that only this
// process and its children see.
func pinPath(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal("mount a BPF file system:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error("unmount the BPF file system:", err)
		}
	})
	return filepath.Join(dir, "veridict")
}

// start starts an agent and waits until it has programmed all Services.
func (n *node) start(t testing.TB, flags ...string) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(n.manifests, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	n.agent = exec.Command(path, append([]string{"run", "--socket", n.socket, "--bpf-pin-path", n.pins}, append(n.flags(), flags...)...)...)
	n.agent.Stderr = t.Output()
	if err := n.agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n.agent != nil {
			n.stop(t, unix.SIGKILL)
		}
	})
	await(t, func() string {
		status, err := n.client.Status(t.Context())
		if err != nil {
			return err.Error()
		}
		if got := status.Dataplane.ServicePorts; got != len(files) {
			return fmt.Sprintf("%d ServicePorts are programmed, want %d", got, len(files))
		}
		return ""
	})
}

// flags are those that say what is to be programmed.
func (n *node) flags() []string {
	return []string{
		"--manifests", n.manifests, "--node-name", "node", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48",
		"--iptables-min-sync-period", "10ms",
	}
}

// stop ends the agent with a signal, which it has to survive as long as it should.
func (n *node) stop(t testing.TB, with syscall.Signal) {
	t.Helper()
	n.signal(t, with)
	err := n.agent.Wait()
	n.agent = nil
	exit, failed := errors.AsType[*exec.ExitError](err)
	if failed && with == unix.SIGKILL && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL {
		return
	}
	if err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}

func (n *node) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := n.agent.Process.Signal(s); err != nil {
		t.Fatalf("signal %s to the agent: %v", s, err)
	}
}

// run runs a command of the program and returns what it prints.
func (n *node) run(t testing.TB, args ...string) (string, error) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("veridict %v: %w: %s%s", args, err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// ask runs a command that asks the agent, and parses its output.
func ask[T any](t testing.TB, n *node, args ...string) *T {
	t.Helper()
	out, err := n.run(t, append(args, "--socket", n.socket, "-o", "json")...)
	if err != nil {
		t.Fatal(err)
	}
	document := new(T)
	if err := json.Unmarshal([]byte(out), document); err != nil {
		t.Fatalf("veridict %v: %v: %s", args, err, out)
	}
	return document
}

func (n *node) status(t testing.TB) *api.Status {
	t.Helper()
	status, err := n.client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return status
}

// service returns what is known of the only port of a Service.
func (n *node) service(t testing.TB, s *service) *api.Service {
	t.Helper()
	list, err := n.client.Service(t.Context(), "shop", s.name)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || len(list.Items[0].Pools) != 1 {
		t.Fatalf("Service %s: %+v, want one port with one pool", s.name, list.Items)
	}
	return &list.Items[0]
}

// awaitEpochs waits until draws of the Services count for verdicts.
func (n *node) awaitEpochs(t testing.TB, services ...*service) {
	t.Helper()
	for _, s := range services {
		await(t, func() string {
			if n.service(t, s).Pools[0].Since.IsZero() {
				return s.name + ": draws do not count yet"
			}
			return ""
		})
	}
}

// await waits until nothing is missing any more.
func await(t testing.TB, missing func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		what := missing()
		if what == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal("waited in vain for 30 s:", what)
		case <-ticker.C:
		}
	}
}
