// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"log/slog"
	"os/exec"
	"strings"
	"testing"

	"github.com/veridict/veridict/dataplane/nftables"
)

// TestCleanupKubeProxy removes kube-proxy's rules of nftables and iptables mode, and
// nothing else.
func TestCleanupKubeProxy(t *testing.T) {
	start(t)
	nft(t, `table ip kube-proxy { chain c { }; }
table ip6 kube-proxy { chain c { }; }
table ip other { chain c { }; }`)
	for _, rule := range []string{
		"-N KUBE-SERVICES", "-N KUBE-SVC-A", "-N KUBE-SEP-B", "-N KUBE-KUBELET-CANARY", "-N MINE",
		"-A PREROUTING -m comment --comment x -j KUBE-SERVICES", "-A OUTPUT -j KUBE-SERVICES", "-A OUTPUT -j MINE",
		"-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-A",
		"-A KUBE-SVC-A -m statistic --mode random --probability 0.5 -j KUBE-SEP-B",
		"-A KUBE-SEP-B -p tcp -j DNAT --to-destination 10.244.0.1:80",
	} {
		out, err := exec.CommandContext(t.Context(), "iptables-nft", append([]string{"-t", "nat"}, strings.Fields(rule)...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("iptables %s: %v: %s", rule, err, out)
		}
	}
	for range 2 {
		if err := nftables.CleanupKubeProxy(t.Context(), slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	}
	rules := list(t, "ruleset")
	for _, gone := range []string{"table ip kube-proxy", "table ip6 kube-proxy", "KUBE-SERVICES", "KUBE-SVC", "KUBE-SEP"} {
		if strings.Contains(rules, gone) {
			t.Errorf("%s is still there:\n%s", gone, rules)
		}
	}
	for _, stays := range []string{"table ip other", "KUBE-KUBELET-CANARY", "jump MINE"} {
		if !strings.Contains(rules, stays) {
			t.Errorf("%s is gone:\n%s", stays, rules)
		}
	}
}
