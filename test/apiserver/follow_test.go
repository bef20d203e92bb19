// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/veridict/veridict/test/apiserver/harness"
)

// TestFollow creates, scales, moves and deletes.
func TestFollow(t *testing.T) {
	r := newRig(t)
	a, b, c := harness.Endpoint(1), harness.Endpoint(2), harness.Endpoint(3)
	first := r.service("first", a)
	agent := r.veridict()
	r.answers(first, a)
	second := r.service("second", b, c)
	r.answers(second, b, c)
	r.setEndpoints("second", c)
	r.answers(second, c)
	r.setEndpoints("second", a, b, c)
	r.answers(second, a, b, c)
	r.setEndpoints("second")
	r.fails(second)
	r.setEndpoints("second", a)
	r.answers(second, a)
	r.must(r.objects.Delete(t.Context(), "second"))
	r.fails(second)
	r.answers(first, a)
	if strings.Contains(agent.log(), "level=ERROR") || strings.Contains(agent.log(), "level=WARN msg=\"objects cannot be read") {
		t.Errorf("log:\n%s", agent.log())
	}
}

// TestPolicyFlips changes a Service while it is served.
func TestPolicyFlips(t *testing.T) {
	r := newRig(t)
	a, b := harness.Endpoint(1), harness.Endpoint(2)
	vip := r.service("web", a, b)
	r.veridict()
	r.answers(vip, a, b)
	local := v1.ServiceInternalTrafficPolicyLocal
	r.must(r.objects.ChangeService(t.Context(), "web", func(s *v1.Service) { s.Spec.InternalTrafficPolicy = &local }))
	// No endpoint runs on this node.
	r.fails(vip)
	cluster := v1.ServiceInternalTrafficPolicyCluster
	r.must(r.objects.ChangeService(t.Context(), "web", func(s *v1.Service) {
		s.Spec.InternalTrafficPolicy = &cluster
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	}))
	r.await(func() string {
		first, err := r.node.Ask(t.Context(), vip)
		if err != nil {
			return err.Error()
		}
		for range 30 {
			if again, err := r.node.Ask(t.Context(), vip); err != nil || again != first {
				return "the client does not stay with its endpoint"
			}
		}
		return ""
	})
	r.must(r.objects.ChangeService(t.Context(), "web", func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityNone }))
	r.answers(vip, a, b)
	r.must(r.objects.ChangeService(t.Context(), "web", func(s *v1.Service) {
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	}))
	r.fails(vip)
}

// TestNamespaceDeletion removes what a namespace controller would, one by one.
func TestNamespaceDeletion(t *testing.T) {
	r := newRig(t)
	agent := r.veridict()
	wanted, err := r.objects.CreateMany(t.Context(), 0, 50, 2, nil)
	r.must(err)
	_, err = r.node.Await(t.Context(), wanted)
	r.must(err)
	r.must(r.objects.DeleteAll(t.Context()))
	r.await(func() string {
		rules := r.nft("list", "table", "ip", "veridict")
		for vip := range wanted {
			if strings.Contains(rules, vip.String()+" ") {
				return vip.String() + " is still in the rules"
			}
		}
		return ""
	})
	if strings.Contains(agent.log(), "level=ERROR") {
		t.Errorf("log:\n%s", agent.log())
	}
}

// TestReadingCommands has render and verify take the objects of the API server, and
// run --once program them.
func TestReadingCommands(t *testing.T) {
	r := newRig(t)
	vip := r.service("web", harness.Endpoint(1))
	config, err := r.plane.Kubeconfig(harness.ServiceAccount, harness.URL)
	r.must(err)
	run := func(args ...string) (string, error) {
		args = append(args, "--kubeconfig", config, "--node-name", harness.NodeName, "--cluster-cidr", harness.PodCIDR)
		out, err := exec.CommandContext(t.Context(), r.program(), args...).CombinedOutput()
		return string(out), err
	}
	if out, err := run("render"); err != nil || !strings.Contains(out, vip.String()) {
		t.Errorf("render: %v\n%s", err, out)
	}
	if out, err := run("verify"); err == nil {
		t.Errorf("verify without rules: no error\n%s", out)
	}
	if out, err := run("run", "--once", "--conntrack-max-per-core", "0"); err != nil {
		t.Errorf("run --once: %v\n%s", err, out)
	}
	r.answers(vip, harness.Endpoint(1))
	if out, err := run("verify"); err != nil {
		t.Errorf("verify: %v\n%s", err, out)
	}
}

// TestCheck has the preflight of a node ask the API server, as whoever follows the
// README does first.
func TestCheck(t *testing.T) {
	r := newRig(t)
	r.service("web", harness.Endpoint(1))
	for _, test := range []struct {
		user, node string
		want       []string
	}{
		{harness.ServiceAccount, harness.NodeName, []string{"API server,ok", "node,ok"}},
		{harness.ServiceAccount, "elsewhere", []string{"API server,ok", "node,failure,the API server has no Node elsewhere"}},
		{harness.Stranger, harness.NodeName, []string{"API server,failure,read objects from the API server: no permission to list and watch"}},
		{"nobody", harness.NodeName, []string{"API server,failure,read objects from the API server: the API server does not accept the credentials"}},
	} {
		config, err := r.plane.Kubeconfig(test.user, harness.URL)
		r.must(err)
		out, err := exec.CommandContext(t.Context(), r.program(), "check", "-o", "json", "--kubeconfig", config, "--node-name", test.node).Output()
		if fit := err == nil; fit != (test.want[1%len(test.want)] == "node,ok") {
			t.Errorf("%s on %s: %v\n%s", test.user, test.node, err, out)
		}
		var report struct {
			Checks []struct{ Name, Status, Detail string }
		}
		r.must(json.Unmarshal(out, &report))
		var got []string
		for _, check := range report.Checks {
			got = append(got, check.Name+","+check.Status+","+check.Detail)
		}
		for _, want := range test.want {
			if !slices.ContainsFunc(got, func(text string) bool { return strings.HasPrefix(text, want) }) {
				t.Errorf("%s on %s: no %q in\n%s", test.user, test.node, want, strings.Join(got, "\n"))
			}
		}
	}
}

// TestManyAtOnce loads 5,000 Services while the agent runs.
func TestManyAtOnce(t *testing.T) {
	r := newRig(t)
	first := r.service("first", harness.Endpoint(1))
	agent := r.veridict()
	r.answers(first, harness.Endpoint(1))
	wanted, err := r.objects.CreateMany(t.Context(), 0, 5000, 3, nil)
	r.must(err)
	if _, err := r.node.Await(t.Context(), wanted); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(agent.log(), "level=ERROR") {
		t.Errorf("log:\n%s", agent.log())
	}
}

// page returns the status and the body of a page of the agent.
func (r *rig) page(url string) (int, string) {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, url, nil)
	r.must(err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	r.must(err)
	return response.StatusCode, string(body)
}

const (
	healthz   = "http://127.0.0.1:10256/healthz"
	livez     = "http://127.0.0.1:10256/livez"
	readyz    = "http://127.0.0.1:10256/readyz"
	proxyMode = "http://127.0.0.1:10249/proxyMode"
	configz   = "http://127.0.0.1:10249/configz"
)

// TestPages asks as kubelet, load balancers and other tools do.
func TestPages(t *testing.T) {
	r := newRig(t)
	vip := r.service("web", harness.Endpoint(1))
	r.veridict()
	r.answers(vip, harness.Endpoint(1))
	for url, want := range map[string]string{
		healthz: `"nodeEligible":true`, livez: `"healthy":true`, readyz: `"ready":true`, proxyMode: "nftables", configz: `"clusterCIDR": "10.244.0.0/16"`,
	} {
		r.await(func() string {
			if status, body := r.page(url); status != http.StatusOK || !strings.Contains(body, want) {
				return url + ": " + body
			}
			return ""
		})
	}
	_, body := r.page(configz)
	if !json.Valid([]byte(body)) {
		t.Errorf("configz: %s", body)
	}
	// The cluster autoscaler is about to delete the node.
	_, err := r.kubectl(t.Context(), "taint", "node", harness.NodeName, "ToBeDeletedByClusterAutoscaler=1:NoSchedule")
	r.must(err)
	t.Cleanup(func() {
		_, err := r.kubectl(context.Background(), "taint", "node", harness.NodeName, "ToBeDeletedByClusterAutoscaler-")
		if err != nil {
			t.Log(err)
		}
	})
	r.await(func() string {
		if status, body := r.page(healthz); status != http.StatusServiceUnavailable {
			return "healthz: " + body
		}
		return ""
	})
	if status, body := r.page(livez); status != http.StatusOK {
		t.Errorf("livez: %d %s", status, body)
	}
}
