// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/deploy"
)

// TestFollower feeds answers by the endpoints' indices and looks when the
// follower says that they agree with the set 0, 1, 2.
func TestFollower(t *testing.T) {
	vip := dataplane.VIP{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: dataplane.TCP, Port: 80}
	const stray = 9
	for _, tc := range []struct {
		name    string
		answers func(answer func(endpoint, times int))
		want    bool
	}{
		{"none", func(func(int, int)) {}, false},
		{"all of the set", func(answer func(int, int)) {
			answer(0, streakLength)
			answer(1, 1)
			answer(2, 1)
		}, true},
		{"one missing", func(answer func(int, int)) {
			answer(0, streakLength)
			answer(1, streakLength)
		}, false},
		{"a short streak", func(answer func(int, int)) {
			answer(0, 1)
			answer(1, 1)
			answer(2, streakLength-3)
		}, false},
		{"broken by a stray", func(answer func(int, int)) {
			answer(0, streakLength)
			answer(1, 1)
			answer(stray, 1)
			answer(2, streakLength)
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			endpoint := func(i int) netip.AddrPort {
				return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 80)
			}
			follower := newFollower(vip, []netip.AddrPort{endpoint(0), endpoint(1), endpoint(2)})
			tc.answers(func(i, times int) {
				for range times {
					follower.observe(testbed.Outcome{VIP: vip, Answer: testbed.Answer{Endpoint: endpoint(i)}})
				}
			})
			settled := false
			select {
			case <-follower.settled:
				settled = true
			default:
			}
			if settled != tc.want {
				t.Errorf("settled: %t, want %t", settled, tc.want)
			}
		})
	}
}

// TestScalerRewritesTheSlice reads the rewritten manifest back.
func TestScalerRewritesTheSlice(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, deploy.Examples()); err != nil {
		t.Fatal(err)
	}
	scaler, err := newScaler(deploy.Examples(), scaledFile, largestScale())
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{9, 1, 5} {
		if err := scaler.scale(dir, scaledFile, size); err != nil {
			t.Fatal(err)
		}
		shop, err := loadShop(os.DirFS(dir))
		if err != nil {
			t.Fatal(err)
		}
		want, err := scaler.addrs(size)
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range shop.servicePorts {
			if port.name != scaledService {
				continue
			}
			if diff := cmp.Diff(want, port.endpoints, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Errorf("%d endpoints (-want +got):\n%s", size, diff)
			}
		}
	}
}
