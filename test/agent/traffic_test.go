// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
)

// traffic is where connections come from: no two have the same source.
type traffic struct {
	pod  *testbed.Pod
	port uint16
	// sent is how many datagrams were sent.
	sent int
}

func newTraffic(c *cluster) *traffic { return &traffic{pod: c.clients, port: 10_000} }

// connect opens connections that have to be answered, and returns how often each
// endpoint did. It fails the test if one is not.
func (tr *traffic) connect(t testing.TB, count int, vips ...dataplane.VIP) map[string]uint64 {
	t.Helper()
	answers := make(map[string]uint64)
	for range count {
		for _, vip := range vips {
			answer, err := tr.ask(t, vip)
			if err != nil {
				t.Fatal(err)
			}
			answers[answer.Endpoint.String()]++
		}
	}
	return answers
}

func (tr *traffic) ask(t testing.TB, vip dataplane.VIP) (testbed.Answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tr.port++
	var answer testbed.Answer
	err := tr.pod.Do(func() (err error) {
		answer, err = testbed.AskFrom(ctx, tr.port, vip)
		return err
	})
	return answer, err
}

// sinkPort is that of endpoints that answer nothing.
const sinkPort = 5300

// sink counts the datagrams of bursts as they reach the node, and drops them behind all
// translations, before conntrack keeps their flows: a hundred thousand need no room.
const sink = `
table ip sink {
	counter arrived {}
	chain prerouting {
		type filter hook prerouting priority -300
		ip saddr 10.244.64.0/18 ip daddr 10.96.0.0/16 counter name arrived
	}
	chain forward {
		type filter hook forward priority -50
		udp dport 5300 drop
	}
}
`

// burst sends datagrams to each VIP, every one from a source of its own. The table sink
// has to be there.
func (tr *traffic) burst(t testing.TB, count int, vips ...netip.AddrPort) {
	t.Helper()
	must(t, "send datagrams", tr.send(count, vips...))
}

func (tr *traffic) send(count int, vips ...netip.AddrPort) error {
	return tr.pod.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		for range count {
			for _, vip := range vips {
				packet := datagram(source(tr.sent), vip)
				tr.sent++
				to := unix.SockaddrInet4{Addr: vip.Addr().As4()}
				if err := unix.Sendto(fd, packet, 0, &to); err != nil && !errors.Is(err, unix.ENOBUFS) {
					return err
				}
			}
		}
		return nil
	})
}

// during sends datagrams without pause while something is done.
func (tr *traffic) during(t testing.TB, vip netip.AddrPort, do func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var group errgroup.Group
	group.Go(func() error {
		for ctx.Err() == nil {
			if err := tr.send(100, vip); err != nil {
				return err
			}
		}
		return nil
	})
	defer func() {
		stop()
		must(t, "send datagrams", group.Wait())
	}()
	do()
}

// source returns the n-th source of datagrams.
func source(n int) netip.AddrPort {
	const perAddress = 60_000
	addr := clients4.Addr().As4()
	addr[3] += byte(n / perAddress)
	return netip.AddrPortFrom(netip.AddrFrom4(addr), uint16(1024+n%perAddress))
}

// datagram returns an IP packet with an empty UDP datagram. Without a checksum,
// conntrack takes it as it is.
func datagram(from, to netip.AddrPort) []byte {
	const ipLen, udpLen = 20, 8
	packet := make([]byte, ipLen, ipLen+udpLen)
	packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(packet[2:], ipLen+udpLen)
	copy(packet[12:], from.Addr().AsSlice())
	copy(packet[16:], to.Addr().AsSlice())
	packet = binary.BigEndian.AppendUint16(packet, from.Port())
	packet = binary.BigEndian.AppendUint16(packet, to.Port())
	packet = binary.BigEndian.AppendUint16(packet, udpLen)
	return binary.BigEndian.AppendUint16(packet, 0)
}

var counterPackets = regexp.MustCompile(`packets (\d+)`)

// arrived returns how many datagrams have reached the node.
func arrived(t testing.TB) uint64 {
	t.Helper()
	listing := nft(t, "list counter ip sink arrived")
	found := counterPackets.FindStringSubmatch(listing)
	if found == nil {
		t.Fatal("no counter in", listing)
	}
	n, err := strconv.ParseUint(found[1], 10, 64)
	must(t, "read the counter", err)
	return n
}

// awaitSelections waits until the Services' selections are all datagrams that have
// reached the node. That are nearly all that were sent: a queue may have been full.
func (n *node) awaitSelections(t testing.TB, tr *traffic, services ...*service) {
	t.Helper()
	await(t, func() string {
		want := arrived(t)
		var got uint64
		for _, s := range services {
			got += n.service(t, s).Selections
		}
		if got == want && want == arrived(t) && want > uint64(tr.sent)*9/10 {
			return ""
		}
		return fmt.Sprintf("%d selections of %d datagrams that arrived of %d", got, want, tr.sent)
	})
}
