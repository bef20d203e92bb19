// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/knftables"

	"github.com/veridict/veridict/dataplane"
)

func TestFakeRefusesWhatTheKernelRefuses(t *testing.T) {
	f := families()[0]
	web, absent := vipOf(webVIP), vipOf("172.30.0.9:80/tcp")
	row := func(bucket uint32, endpoint string) element {
		return MarkFree.row(web, clusterScope, bucket, netip.MustParseAddrPort(endpoint))
	}
	add := func(e element) op { return op{element: e} }
	del := func(e element) op { return op{element: e, delete: true} }
	unknownSet := clusterIPElement(web.Addr)
	unknownSet.set = "unknown"
	cases := []struct {
		name string
		ops  []op
		want error
	}{
		{"key that is there with another value", []op{add(row(0, "10.180.1.9:8080"))}, syscall.EEXIST},
		{"key that is there with the same value", []op{add(row(0, "10.180.1.1:8080"))}, nil},
		{"value replaced", []op{add(row(0, "10.180.1.9:8080")), del(row(0, "10.180.1.1:8080"))}, nil},
		{"key deleted that is not there", []op{del(row(7, "10.180.1.1:8080"))}, syscall.ENOENT},
		{"key deleted twice", []op{del(row(0, "10.180.1.1:8080")), del(row(0, "10.180.1.1:8080"))}, syscall.ENOENT},
		{"set that is not there", []op{add(unknownSet)}, syscall.ENOENT},
		{"verdict to a chain that is not there", []op{add(serviceElement(absent, 3))}, syscall.ENOENT},
		{"verdict", []op{add(serviceElement(absent, 2))}, nil},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, Options{}, servicePort("web", webVIP, remote(0, 2)...))
			before := dumpOf(r.fake)
			// Good changes around the bad one are taken back with it.
			extra := clusterIPElement(absent.Addr)
			ops := append([]op{del(clusterIPElement(web.Addr)), add(extra)}, tc.ops...)
			err := r.fake.apply(t.Context(), f, ops)
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Fatalf("apply: %v, want %v", err, tc.want)
			}
			if after := dumpOf(r.fake); (after == before) != (tc.want != nil) {
				t.Errorf("tables changed: %t, want %t", after != before, tc.want == nil)
			}
		})
	}
}

func TestFakeWithoutTables(t *testing.T) {
	fake := NewFake()
	f := families()[0]
	if err := fake.apply(t.Context(), f, []op{{element: clusterIPElement(netip.MustParseAddr("172.30.0.1"))}}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("apply: %v, want ENOENT", err)
	}
	if err := fake.elements(t.Context(), f, clusterIPs, func(element) {}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("elements: %v, want ENOENT", err)
	}
	if found, err := fake.objects(t.Context(), f); err != nil || len(found.chains)+len(found.sets) != 0 {
		t.Errorf("objects: %v, %v, want none", found, err)
	}
	if table := fake.Table(dataplane.IPv4); table != nil {
		t.Errorf("table: %v, want none", table)
	}
}

func TestFakeStructure(t *testing.T) {
	chain := func(name string) *knftables.Chain { return &knftables.Chain{Name: name} }
	cases := []struct {
		name  string
		build func(tx *knftables.Transaction)
		want  error
	}{
		{"chain that an element leads to", func(tx *knftables.Transaction) { tx.Flush(chain("cluster-2")); tx.Delete(chain("cluster-2")) }, syscall.EBUSY},
		{"chain that a rule leads to", func(tx *knftables.Transaction) { tx.Delete(chain(servicesChain)) }, syscall.EBUSY},
		{"set that a rule looks into", func(tx *knftables.Transaction) { tx.Delete(&knftables.Set{Name: clusterIPs}) }, syscall.EBUSY},
		{"chain that is not there", func(tx *knftables.Transaction) { tx.Delete(chain("unknown")) }, syscall.ENOENT},
		{"rule to a chain that is not there", func(tx *knftables.Transaction) {
			tx.Add(&knftables.Rule{Chain: servicesChain, Rule: "goto unknown"})
		}, syscall.ENOENT},
		{"chain that nothing leads to", func(tx *knftables.Transaction) { tx.Add(chain("new")); tx.Delete(chain("new")) }, nil},
		{"nothing", func(*knftables.Transaction) {}, nil},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, Options{}, servicePort("web", webVIP, remote(0, 2)...))
			before := dumpOf(r.fake)
			err := r.fake.structure(t.Context(), families()[0], tc.build)
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Fatalf("structure: %v, want %v", err, tc.want)
			}
			if after := dumpOf(r.fake); after != before {
				t.Errorf("tables changed to\n%s", after)
			}
		})
	}
}

// A set that is deleted and added again in one transaction is empty.
func TestFakeForgetsElementsWithTheirSet(t *testing.T) {
	r := newRig(t, Options{}, servicePort("web", webVIP, remote(0, 2)...))
	err := r.fake.structure(t.Context(), families()[0], func(tx *knftables.Transaction) {
		tx.Delete(&knftables.Table{})
		writeTable(tx, new(newRuleset(families()[0], MarkFree, &dataplane.Settings{})))
	})
	if err != nil {
		t.Fatalf("structure: %v", err)
	}
	if got := elementsIn(r.fake); got != 0 {
		t.Errorf("%d elements, want none", got)
	}
}

func TestFakeHooks(t *testing.T) {
	r := newRig(t, Options{})
	var asked []Commit
	r.fake.Refuse = func(c Commit) error {
		asked = append(asked, c)
		return nil
	}
	r.sync(dataplane.Update{Changed: []dataplane.ServicePort{servicePort("web", webVIP, "+10.180.0.1:8080")}})
	if len(asked) != 2 || len(asked[0].Changes) != 0 || asked[1].Number != asked[0].Number+1 {
		t.Fatalf("asked about %v, want a chain and then elements", asked)
	}
	want := strings.Join([]string{
		"+ endpoints-tcp 172.30.0.1 . 80 . 0 : 10.180.0.1 . 8080",
		"+ service-ips 172.30.0.1 . tcp . 80 : goto cluster-1",
		"+ cluster-ips 172.30.0.1",
		"+ hairpin-connections 10.180.0.1 . 10.180.0.1 . tcp . 8080",
	}, "\n")
	if got := strings.Join(r.changes(), "\n"); got != want {
		t.Errorf("committed:\n%s\nwant:\n%s", got, want)
	}
	r.fake.FlushRuleset()
	if got := elementsIn(r.fake); got != 0 {
		t.Errorf("%d elements after a flush, want none", got)
	}
}
