// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/dataplane"
)

func TestVariantNames(t *testing.T) {
	cases := map[string]variant{
		"cluster-1":                 {kind: dispatchVariant, n: 1},
		"cluster-65535":             {kind: dispatchVariant, n: 65535},
		"local-3":                   {kind: dispatchVariant, n: 3, scope: localScope},
		"nodeport-3":                {kind: dispatchVariant, n: 3, nodePort: true},
		"nodeport-local-3":          {kind: dispatchVariant, n: 3, nodePort: true, scope: localScope},
		"cluster-hash-3":            {kind: dispatchVariant, n: 3, algorithm: dataplane.SourceHash},
		"nodeport-local-hash-3":     {kind: dispatchVariant, n: 3, nodePort: true, scope: localScope, algorithm: dataplane.SourceHash},
		"affinity-tcp-7":            {kind: affinityVariant, n: 7, protocol: dataplane.TCP},
		"affinity-local-sctp-7":     {kind: affinityVariant, n: 7, protocol: dataplane.SCTP, scope: localScope},
		"pin-10800s":                {kind: pinVariant, seconds: 10800},
		"pin-udp-7-10800s":          {kind: pinVariant, n: 7, seconds: 10800, protocol: dataplane.UDP},
		"pin-local-tcp-65535-1s":    {kind: pinVariant, n: 65535, seconds: 1, protocol: dataplane.TCP, scope: localScope},
		"affinity-local-udp-999999": {kind: affinityVariant, n: 999999, protocol: dataplane.UDP, scope: localScope},
	}
	for name, want := range cases {
		if got := want.name(); got != name {
			t.Errorf("%+v is named %q, want %q", want, got, name)
		}
		got, ok := parseVariant(name)
		if !ok {
			t.Errorf("%q is no variant", name)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(variant{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", name, diff)
		}
	}
}

func TestOtherNamesAreNoVariants(t *testing.T) {
	for _, name := range []string{
		"", "cluster-", "cluster-0", "cluster--1", "cluster-01", "cluster-1x", "cluster- 1", "cluster-+1",
		"cluster-ips-check", "cluster-99999999999999999999", "missed", "local-missed", "nodeport-missed", "nodeports",
		"nodeport-external-local", "affinity", "affinity-7", "affinity-tcp-", "affinity-tcp-0", "pin-7", "pin-s", "pin-0s",
		"pin-7-10s", "pin-tcp-10s", "pin-local-10s", "pins", "unpinned", "nodeport-cluster-3", "hash-3", "external-local",
	} {
		if v, ok := parseVariant(name); ok {
			t.Errorf("%q is the variant %+v", name, v)
		}
	}
}
