// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"syscall"

	"sigs.k8s.io/knftables"

	"github.com/veridict/veridict/dataplane"
)

// trialTable is only ever checked, never made: a table of this name cannot differ
// from what is tried.
const trialTable = tableName + "-trial"

// trial returns the families whose rules nft and the kernel take, by a dry run of
// all kinds of them. A kernel that has nf_tables for one family only is served in
// that one, with a warning.
func trial(ctx context.Context, layout Layout, log *slog.Logger) ([]family, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var usable []family
	var last error
	for _, f := range families() {
		err := try(ctx, f, layout)
		switch {
		case err == nil:
			usable = append(usable, f)
		case unsupported(err):
			last = fmt.Errorf("this kernel has no nf_tables for %s: %w", f.id, err)
			log.Warn("Services of this IP family are not served", "family", f.id, "err", last)
		default:
			return nil, fmt.Errorf("nft or the kernel does not take the rules for %s (is a module missing: "+
				"nft_chain_nat, nft_nat, nft_masq, nft_reject, nft_numgen, nft_ct?): %w", f.id, err)
		}
	}
	if len(usable) == 0 {
		return nil, last
	}
	return usable, nil
}

// unsupported says that the kernel does not know the family. The nft program hands
// errors on in words.
func unsupported(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EOPNOTSUPP, syscall.EAFNOSUPPORT} {
		if strings.Contains(strings.ToLower(err.Error()), errno.Error()) {
			return true
		}
	}
	return false
}

// try runs nft --check, which has the kernel run the transaction and then abort it.
func try(ctx context.Context, f family, layout Layout) error {
	nft, err := knftables.New(knftables.Family(f.ip), trialTable)
	if err != nil {
		return nftError(ctx, err)
	}
	// Masquerading is among the rules in this case only.
	options := Options{Layout: layout}.withDefaults()
	r := options.ruleset(f, &dataplane.Settings{MasqueradeAll: true, AllAddresses: []dataplane.Family{f.id}})
	tx := nft.NewTransaction()
	writeTable(tx, &r)
	for _, chain := range r.chains {
		writeChain(tx, chain)
	}
	for _, v := range trialVariants() {
		if chain := v.chain(f, layout); !chain.byNetlink(f) {
			writeChain(tx, chain)
		}
	}
	return nftError(ctx, nft.Check(ctx, tx))
}

// trialVariants are variants of each kind.
func trialVariants() []variant {
	return []variant{
		{kind: dispatchVariant, n: 1},
		{kind: dispatchVariant, n: 1, scope: localScope, algorithm: dataplane.SourceHash},
		{kind: affinityVariant, n: 1, protocol: dataplane.TCP},
		{kind: pinVariant, n: 1, protocol: dataplane.TCP, seconds: 1},
		{kind: pinVariant, seconds: 1},
	}
}
