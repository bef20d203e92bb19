// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"

	"github.com/veridict/veridict/compare/testbed/testmain"

	"github.com/veridict/veridict/test/apiserver/harness"
)

func TestMain(m *testing.M) { os.Exit(testmain.Run(m)) }

// programs is the directory of kube-apiserver, kube-proxy and veridict.
func programs() string {
	if dir := os.Getenv("VERIDICT_APISERVER_PROGRAMS"); dir != "" {
		return dir
	}
	return "../../bin"
}

// world is what all tests share; it ends with the process.
type world struct {
	dir   string
	plane *harness.ControlPlane
	node  *harness.Node
	admin *kubernetes.Clientset
}

var theWorld = sync.OnceValues(func() (*world, error) {
	// Private to this process, in memory, and gone with it.
	dir, err := os.MkdirTemp("/run", "veridict")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir}
	ctx := context.Background()
	if w.node, err = harness.NewNode(ctx); err != nil {
		return nil, err
	}
	if w.plane, err = harness.NewControlPlane(ctx, dir, programs()); err != nil {
		return nil, err
	}
	if w.admin, err = w.plane.Client(harness.Admin); err != nil {
		return nil, err
	}
	if err := harness.CreateNode(ctx, w.admin); err != nil {
		return nil, err
	}
	return w, w.grant(ctx)
})

// grant gives veridict's service account what deploy/base does.
func (w *world) grant(ctx context.Context) error {
	_, err := w.kubectl(ctx, "apply", "--server-side", "--force-conflicts", "--namespace", "kube-system", "-f", "../../deploy/base/rbac.yaml")
	return err
}

func (w *world) kubectl(ctx context.Context, args ...string) (string, error) {
	config, err := w.plane.Kubeconfig(harness.Admin, harness.URL)
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, "kubectl", append([]string{"--kubeconfig", config}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// rig is what a test has for itself: a namespace of objects.
type rig struct {
	*world
	t       *testing.T
	objects *harness.Objects
}

func newRig(t *testing.T) *rig {
	t.Helper()
	testmain.NeedRoot(t)
	w, err := theWorld()
	if err != nil {
		t.Fatal("set up the cluster:", err)
	}
	name := strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	objects, err := harness.NewObjects(t.Context(), w.admin, name)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{world: w, t: t, objects: objects}
	t.Cleanup(func() {
		r.must(objects.DeleteAll(context.Background()))
		out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput()
		if err != nil {
			t.Errorf("nft flush ruleset: %v: %s", err, out)
		}
	})
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// service makes a Service with endpoints.
func (r *rig) service(name string, endpoints ...netip.Addr) netip.Addr {
	r.t.Helper()
	vip, err := r.objects.Service(r.t.Context(), name)
	r.must(err)
	r.setEndpoints(name, endpoints...)
	return vip
}

func (r *rig) setEndpoints(service string, endpoints ...netip.Addr) {
	r.t.Helper()
	r.must(r.objects.SetEndpoints(r.t.Context(), service, endpoints...))
}

// veridict starts the agent with the rights of deploy/base.
func (r *rig) veridict(flags ...string) *agent {
	r.t.Helper()
	return r.veridictAs(harness.ServiceAccount, harness.URL, flags...)
}

func (r *rig) veridictAs(user, url string, flags ...string) *agent {
	r.t.Helper()
	program, err := r.plane.Veridict(r.program(), user, url, flags...)
	r.must(err)
	a := &agent{Program: program, r: r, begin: len(program.Log())}
	r.t.Cleanup(func() {
		if !a.stopped {
			a.Kill()
		}
		if r.t.Failed() {
			r.t.Logf("veridict's log:\n%s", a.log())
		}
	})
	return a
}

func (r *rig) program() string { return filepath.Join(programs(), "veridict") }

// agent is a running veridict.
type agent struct {
	*harness.Program
	r       *rig
	begin   int
	stopped bool
}

// log is what this agent has written; those of earlier ones are in the same file.
func (a *agent) log() string { return a.Log()[min(a.begin, len(a.Log())):] }

// stop ends the agent and returns how long that took.
func (a *agent) stop() time.Duration {
	a.r.t.Helper()
	a.stopped = true
	took, err := a.Stop()
	a.r.must(err)
	return took
}

// await polls until check returns nothing; what it returns is what is not so yet.
func (r *rig) await(check func() string) {
	r.t.Helper()
	deadline := time.Now().Add(time.Minute)
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	for {
		wrong := check()
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatal(wrong)
		}
		<-pause.C
	}
}

// answers waits until the VIP is answered by the endpoints, all of them and no other.
func (r *rig) answers(vip netip.Addr, endpoints ...netip.Addr) {
	r.t.Helper()
	r.await(func() string {
		seen := map[netip.Addr]bool{}
		// So many that one of a few endpoints is hardly ever left out.
		for range 20 * len(endpoints) {
			answer, err := r.node.Ask(r.t.Context(), vip)
			if err != nil {
				return err.Error()
			}
			seen[answer] = true
		}
		for _, endpoint := range endpoints {
			if !seen[endpoint] {
				return fmt.Sprintf("%s: %s has not answered, but %v", vip, endpoint, seen)
			}
			delete(seen, endpoint)
		}
		if len(seen) > 0 {
			return fmt.Sprintf("%s: %v have answered, too", vip, seen)
		}
		return ""
	})
}

// fails waits until connections to the VIP fail.
func (r *rig) fails(vip netip.Addr) {
	r.t.Helper()
	r.await(func() string {
		answer, err := r.node.Ask(r.t.Context(), vip)
		if err == nil {
			return fmt.Sprintf("%s is still answered by %s", vip, answer)
		}
		return ""
	})
}

// logs waits until the agent has logged a text.
func (a *agent) logs(text string) {
	a.r.t.Helper()
	a.r.await(func() string {
		if !strings.Contains(a.log(), text) {
			return fmt.Sprintf("the log has no %q", text)
		}
		return ""
	})
}

// nft returns what "nft ARGS" prints.
func (r *rig) nft(args ...string) string {
	r.t.Helper()
	out, err := exec.CommandContext(r.t.Context(), "nft", args...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("nft %v: %v: %s", args, err, out)
	}
	return string(out)
}

const (
	sigStop = syscall.Signal(unix.SIGSTOP)
	sigCont = syscall.Signal(unix.SIGCONT)
)
