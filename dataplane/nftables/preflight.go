// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/nftables"

	"github.com/veridict/veridict/dataplane"
)

// Version returns what nft says that it is.
func Version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	out, err := runNFT(ctx, "--version")
	return strings.TrimSpace(out), err
}

// DryRun returns for each family why nft or the kernel does not take the rules of a
// layout, nil if they do. Nothing is changed.
func DryRun(ctx context.Context, layout Layout) map[dataplane.Family]error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	results := map[dataplane.Family]error{}
	for _, f := range families() {
		results[f.id] = try(ctx, f, layout)
	}
	return results
}

// Others is what other programs have in nftables.
type Others struct {
	// Tables are "family name", and NATChains "family table chain" of base chains that
	// may translate destinations.
	Tables, NATChains []string
	// KubeProxyChains says that there are chains of kube-proxy's iptables mode.
	KubeProxyChains bool
}

// ListOthers looks at all tables but our own.
func ListOthers() (Others, error) {
	conn, err := nftables.New()
	if err != nil {
		return Others{}, fmt.Errorf("open netlink socket: %w", err)
	}
	var others Others
	for family, name := range map[nftables.TableFamily]string{
		nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
	} {
		tables, err := conn.ListTablesOfFamily(family)
		if err != nil {
			return Others{}, fmt.Errorf("list nftables tables: %w", err)
		}
		for _, table := range tables {
			if table.Name != tableName {
				others.Tables = append(others.Tables, name+" "+table.Name)
			}
		}
		chains, err := conn.ListChainsOfTableFamily(family)
		if err != nil {
			return Others{}, fmt.Errorf("list nftables chains: %w", err)
		}
		for _, chain := range chains {
			others.add(name, chain)
		}
	}
	return others, nil
}

func (o *Others) add(family string, chain *nftables.Chain) {
	if chain.Table.Name == tableName {
		return
	}
	o.KubeProxyChains = o.KubeProxyChains || isKubeProxyChain(chain.Name)
	if chain.Type != nftables.ChainTypeNAT || chain.Hooknum == nil {
		return
	}
	if *chain.Hooknum == *nftables.ChainHookPrerouting || *chain.Hooknum == *nftables.ChainHookOutput {
		o.NATChains = append(o.NATChains, family+" "+chain.Table.Name+" "+chain.Name)
	}
}
