// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/google/nftables"
	nftexpr "github.com/google/nftables/expr"
)

// kubeProxyTable is kube-proxy's, in both families, in nftables mode.
const kubeProxyTable = "kube-proxy"

// CleanupKubeProxy removes what kube-proxy leaves behind: its tables of nftables mode,
// and of iptables mode the chains that iptables-nft keeps in tables of nftables, with
// the rules that lead to them. The kubelet's own KUBE chains stay. Rules of
// iptables-legacy and of ipvs are beyond nftables: "kube-proxy --cleanup" removes those.
//
// Connections go on: connection tracking keeps their translation.
func CleanupKubeProxy(ctx context.Context, log *slog.Logger) (err error) {
	if err := probeKernel(); err != nil {
		return err
	}
	k := &netlinkKernel{own: new(ownership)}
	defer func() { err = errors.Join(err, k.close()) }()
	conn, err := k.connection(ctx)
	if err != nil {
		return fmt.Errorf("cleanup: %w", err)
	}
	removed := 0
	for _, f := range families() {
		family := tableFamily(f)
		tables, err := conn.ListTablesOfFamily(family)
		if err != nil {
			return fmt.Errorf("cleanup: list tables: %w", err)
		}
		for _, table := range tables {
			n := 0
			switch {
			case table.Name == kubeProxyTable:
				conn.DelTable(&nftables.Table{Name: table.Name, Family: family})
				n = 1
			case slices.Contains([]string{"nat", "filter", "mangle"}, table.Name):
				if n, err = removeKubeChains(conn, table); err != nil {
					return fmt.Errorf("cleanup: table %s %s: %w", f.ip, table.Name, err)
				}
			}
			if err := conn.Flush(); err != nil {
				return fmt.Errorf("cleanup: remove kube-proxy's rules of table %s %s: %w", f.ip, table.Name, err)
			}
			if n > 0 {
				log.Info("removed rules of kube-proxy", "family", f.id, "table", table.Name)
			}
			removed += n
		}
	}
	if removed == 0 {
		log.Info("there are no nftables rules of kube-proxy")
	}
	return nil
}

// removeKubeChains queues the removal of kube-proxy's chains of a table and of all rules
// that lead to them, and returns the number of chains.
func removeKubeChains(conn *nftables.Conn, table *nftables.Table) (int, error) {
	chains, err := conn.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return 0, fmt.Errorf("list chains: %w", err)
	}
	chains = slices.DeleteFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name != table.Name })
	var ours []*nftables.Chain
	for _, chain := range chains {
		if isKubeProxyChain(chain.Name) {
			ours = append(ours, chain)
			conn.FlushChain(chain)
		}
	}
	if len(ours) == 0 {
		return 0, nil
	}
	for _, chain := range chains {
		if isKubeProxyChain(chain.Name) {
			continue
		}
		rules, err := conn.GetRules(table, chain)
		if err != nil {
			return 0, fmt.Errorf("list rules of chain %s: %w", chain.Name, err)
		}
		for _, rule := range rules {
			if !slices.ContainsFunc(rule.Exprs, leadsToKubeProxy) {
				continue
			}
			if err := conn.DelRule(rule); err != nil {
				return 0, fmt.Errorf("delete a rule of chain %s: %w", chain.Name, err)
			}
		}
	}
	for _, chain := range ours {
		conn.DelChain(chain)
	}
	return len(ours), nil
}

func leadsToKubeProxy(e nftexpr.Any) bool {
	verdict, ok := e.(*nftexpr.Verdict)
	return ok && isKubeProxyChain(verdict.Chain)
}

// isKubeProxyChain knows the names of iptables mode; kubelet's are KUBE-FIREWALL,
// KUBE-KUBELET-CANARY and KUBE-IPTABLES-HINT (pkg/proxy/iptables and pkg/kubelet in
// Kubernetes 1.37).
func isKubeProxyChain(name string) bool {
	exact := []string{
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-FORWARD",
		"KUBE-MARK-MASQ", "KUBE-MARK-DROP", "KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY", "KUBE-SOURCE-RANGES-FIREWALL",
	}
	prefixes := []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-"}
	return slices.Contains(exact, name) || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
