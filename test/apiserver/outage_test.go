// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/veridict/veridict/test/apiserver/harness"
)

// TestAPIServerRestarts keeps serving while the API server is away, says so, and
// catches up with what happened while the watches were not there. What was between
// is compacted away, so that they cannot go on from where they were.
func TestAPIServerRestarts(t *testing.T) {
	r := newRig(t)
	a, b := harness.Endpoint(1), harness.Endpoint(2)
	moved, deleted := r.service("moved", a), r.service("deleted", a)
	agent := r.veridict()
	r.answers(moved, a)
	r.answers(deleted, a)

	// The agent sees nothing of the changes: it stands still until they are history.
	r.must(agent.Signal(sigStop))
	r.setEndpoints("moved", b)
	r.must(r.objects.Delete(t.Context(), "deleted"))
	created := r.service("created", b)
	r.plane.StopAPIServer()
	r.must(r.plane.Compact(t.Context()))
	r.must(agent.Signal(sigCont))
	agent.logs("the API server cannot be reached")
	r.await(func() string {
		status, body := r.page(healthz)
		if status != http.StatusOK || !strings.Contains(body, "the API server cannot be reached") {
			return "healthz: " + body
		}
		return ""
	})
	if _, err := r.node.Ask(t.Context(), moved); err != nil {
		t.Error("the last state is gone:", err)
	}
	r.must(r.plane.StartAPIServer(t.Context()))
	r.answers(moved, b)
	r.answers(created, b)
	r.fails(deleted)
	r.await(func() string {
		if status, body := r.page(healthz); status != http.StatusOK || strings.Contains(body, "outages") {
			return "healthz: " + body
		}
		return ""
	})
	agent.logs("the API server answers again")
}

// slowProxy passes connections to the API server on, each byte later.
type slowProxy struct {
	listener net.Listener
	mu       sync.Mutex
	stalled  bool
	moving   *sync.Cond
	conns    map[net.Conn]bool
}

func newSlowProxy(t *testing.T) *slowProxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &slowProxy{listener: listener, stalled: true, conns: map[net.Conn]bool{}}
	p.moving = sync.NewCond(&p.mu)
	t.Cleanup(func() {
		listener.Close()
		p.stall(false)
		p.cut()
	})
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client)
		}
	}()
	return p
}

func (p *slowProxy) url() string { return "https://" + p.listener.Addr().String() }

// stall holds everything back, or lets it go on.
func (p *slowProxy) stall(stalled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = stalled
	p.moving.Broadcast()
}

// cut ends all connections.
func (p *slowProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		conn.Close()
	}
}

func (p *slowProxy) serve(client net.Conn) {
	server, err := new(net.Dialer).Dial("tcp", strings.TrimPrefix(harness.URL, "https://"))
	if err != nil {
		client.Close()
		return
	}
	p.mu.Lock()
	p.conns[client], p.conns[server] = true, true
	p.mu.Unlock()
	pass := func(to, from net.Conn) {
		defer to.Close()
		buffer := make([]byte, 16<<10)
		for {
			n, err := from.Read(buffer)
			p.mu.Lock()
			for p.stalled {
				p.moving.Wait()
			}
			p.mu.Unlock()
			if n > 0 {
				if _, err := to.Write(buffer[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	go pass(server, client)
	pass(client, server)
}

// TestSlowAPIServer says what the start waits for, and programs nothing before it has
// all; later a server that stalls changes nothing.
func TestSlowAPIServer(t *testing.T) {
	r := newRig(t)
	a, b := harness.Endpoint(1), harness.Endpoint(2)
	vip := r.service("web", a)
	proxy := newSlowProxy(t)
	agent := r.veridictAs(harness.ServiceAccount, proxy.url())
	agent.logs("still waiting for the API server")
	if status, body := r.page(readyz); status != http.StatusServiceUnavailable {
		t.Errorf("readyz: %d %s", status, body)
	}
	if rules := r.nft("list", "ruleset"); strings.Contains(rules, "veridict") {
		t.Errorf("programmed before it had anything:\n%s", rules)
	}
	proxy.stall(false)
	r.answers(vip, a)
	proxy.stall(true)
	r.setEndpoints("web", b)
	if _, err := r.node.Ask(t.Context(), vip); err != nil {
		t.Error(err)
	}
	proxy.cut()
	proxy.stall(false)
	r.answers(vip, b)
}

// TestMissingRights names the kind that may not be read, and goes on when it may.
func TestMissingRights(t *testing.T) {
	r := newRig(t)
	vip := r.service("web", harness.Endpoint(1))
	roles := r.admin.RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), "veridict", metav1.GetOptions{})
	r.must(err)
	role.Rules = []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"services", "nodes"}, Verbs: []string{"get", "list", "watch"}}}
	_, err = roles.Update(t.Context(), role, metav1.UpdateOptions{})
	r.must(err)
	agent := r.veridict()
	agent.logs("no permission to list and watch endpointslices")
	agent.logs("no permission to list and watch servicecidrs")
	if status, body := r.page(readyz); status != http.StatusServiceUnavailable {
		t.Errorf("readyz: %d %s", status, body)
	}
	_, err = r.kubectl(t.Context(), "apply", "--server-side", "--force-conflicts", "--namespace", "kube-system", "-f", "../../deploy/base/rbac.yaml")
	r.must(err)
	r.answers(vip, harness.Endpoint(1))
	if n := strings.Count(agent.log(), "level=WARN msg=\"objects cannot be read"); n != 2 {
		t.Errorf("%d warnings, want 2:\n%s", n, agent.log())
	}
}

// TestWrongCredentials says what is wrong with them.
func TestWrongCredentials(t *testing.T) {
	r := newRig(t)
	r.veridictAs("nobody", harness.URL).logs("the API server does not accept the credentials")
}

// TestStranger may read nothing; each kind is named.
func TestStranger(t *testing.T) {
	r := newRig(t)
	agent := r.veridictAs(harness.Stranger, harness.URL)
	for _, kind := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
		agent.logs("no permission to list and watch " + kind)
	}
}

// TestNodeIsMissing serves, and says how to name the node.
func TestNodeIsMissing(t *testing.T) {
	r := newRig(t)
	vip := r.service("web", harness.Endpoint(1))
	agent := r.veridict("--node-name", "elsewhere")
	r.answers(vip, harness.Endpoint(1))
	agent.logs(`object="Node elsewhere" problem="the API server has no such object; give the name of this node's with --node-name"`)
}

// TestSIGTERM ends within a second, with a request under way, and leaves the rules.
func TestSIGTERM(t *testing.T) {
	r := newRig(t)
	vip := r.service("web", harness.Endpoint(1))
	agent := r.veridict("--profiling")
	r.answers(vip, harness.Endpoint(1))
	profile := make(chan struct{})
	go func() {
		defer close(profile)
		r.page("http://127.0.0.1:10249/debug/pprof/trace?seconds=20")
	}()
	r.await(func() string {
		if _, body := r.page("http://127.0.0.1:10249/debug/pprof/goroutine?debug=1"); !strings.Contains(body, "pprof.Trace") {
			return "no trace is under way"
		}
		return ""
	})
	if took := agent.stop(); took > time.Second {
		t.Errorf("it took %s", took)
	}
	<-profile
	r.answers(vip, harness.Endpoint(1))
}

// TestEvents writes what an operator must act on where kubectl describe shows it.
func TestEvents(t *testing.T) {
	r := newRig(t)
	_, err := r.objects.Service(t.Context(), "web", func(s *v1.Service) {
		s.Annotations = map[string]string{"veridict.dev/algorithm": "guess"}
	})
	r.must(err)
	r.veridict()
	r.await(func() string {
		list, err := r.admin.EventsV1().Events(r.objects.Namespace).List(t.Context(), metav1.ListOptions{})
		r.must(err)
		for _, event := range list.Items {
			if event.Regarding.Name == "web" && event.Reason == "NotServed" && strings.Contains(event.Note, "guess") {
				return ""
			}
		}
		return "no event regards the Service"
	})
	out, err := r.kubectl(t.Context(), "describe", "service", "--namespace", r.objects.Namespace, "web")
	r.must(err)
	if !strings.Contains(out, "NotServed") {
		t.Errorf("kubectl describe:\n%s", out)
	}
}
