// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/hex"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// listRules returns the rules of each chain of the table, as the kernel holds
// them: the same text means the same rule.
func listRules(ctx context.Context, f family) (map[string][]string, error) {
	rules := make(map[string][]string)
	request := []netlink.Attribute{{Type: unix.NFTA_RULE_TABLE, Data: []byte(tableName + "\x00")}}
	err := dump(ctx, f, unix.NFT_MSG_GETRULE, request, func(attrs []byte) error {
		ad, err := netlink.NewAttributeDecoder(attrs)
		if err != nil {
			return err
		}
		var chain, table string
		var expressions []string
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_RULE_TABLE:
				table = ad.String()
			case unix.NFTA_RULE_CHAIN:
				chain = ad.String()
			case unix.NFTA_RULE_EXPRESSIONS:
				ad.Nested(func(list *netlink.AttributeDecoder) error {
					for list.Next() {
						expressions = append(expressions, decodeExpression(list))
					}
					return nil
				})
			}
		}
		if table == tableName {
			rules[chain] = append(rules[chain], strings.Join(expressions, " "))
		}
		return ad.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("list rules of %s %s: %w", f.ip, tableName, err)
	}
	return rules, nil
}

// decodeExpression returns an expression's name and attributes. What a counter
// has counted is left out.
func decodeExpression(list *netlink.AttributeDecoder) string {
	var name, data string
	list.Nested(func(ad *netlink.AttributeDecoder) error {
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_EXPR_NAME:
				name = ad.String()
			case unix.NFTA_EXPR_DATA:
				data = hex.EncodeToString(ad.Bytes())
			}
		}
		return nil
	})
	if name == "counter" {
		return name
	}
	return name + "(" + data + ")"
}

// loadElsewhere loads chains into the table of a fresh network namespace and
// returns their rules from there. The thread that enters the namespace ends with
// it.
func loadElsewhere(ctx context.Context, f family, r *ruleset, chains []chainDecl) (map[string][]string, error) {
	type result struct {
		rules map[string][]string
		err   error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread()
		rules, err := loadHere(ctx, f, r, chains)
		done <- result{rules, err}
	}()
	res := <-done
	return res.rules, res.err
}

func loadHere(ctx context.Context, f family, r *ruleset, chains []chainDecl) (map[string][]string, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("make a network namespace to compare rules in (needs CAP_SYS_ADMIN): %w", err)
	}
	k, err := newNetlinkKernel([]family{f})
	if err != nil {
		return nil, err
	}
	err = k.structure(ctx, f, func(tx *knftables.Transaction) {
		writeTable(tx, r)
		// A rule can go to any chain, so all chains come before all rules.
		for _, chain := range chains {
			tx.Add(chain.object())
		}
		for _, chain := range chains {
			if !chain.byNetlink(f) {
				writeChain(tx, chain)
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("load the wanted rules: %w", err)
	}
	pins := slices.DeleteFunc(slices.Clone(chains), func(c chainDecl) bool { return !c.byNetlink(f) })
	if err := k.pinRules(ctx, f, pins); err != nil {
		return nil, err
	}
	return listRules(ctx, f)
}
