// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"testing"
	"time"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/localhost"
	"github.com/veridict/veridict/dataplane/nftables"
)

// TestLocalhostNodePorts connects to NodePorts on the node's loopback addresses.
func TestLocalhostNodePorts(t *testing.T) {
	start(t)
	c := sharedCluster(t)
	endpoint4 := netip.AddrPortFrom(nth(endpoints4.Addr(), 970), 8080)
	endpoint6 := netip.AddrPortFrom(nth(endpoints6.Addr(), 970), 8080)
	c.serve(t, dataplane.TCP, endpoint4, endpoint6)
	var ports []dataplane.ServicePort
	for _, protocol := range []dataplane.Protocol{dataplane.TCP, dataplane.UDP} {
		for vip, endpoint := range map[string]netip.AddrPort{"10.96.0.97:80": endpoint4, "[fd00:10:96::97]:80": endpoint6} {
			sp := port("local", netip.MustParseAddrPort(vip), protocol, endpoint)
			sp.External = &dataplane.External{NodePort: 31097, Local: true}
			ports = append(ports, sp)
		}
	}
	settings := clusterSettings()
	settings.Localhost = dataplane.LocalhostProxied
	syncer := localhost.New(newSyncer(t, quiet(nftables.MarkFree)), localhost.Options{Logger: slog.New(slog.DiscardHandler)})
	defer syncer.Close()
	if _, err := syncer.Reset(t.Context(), stateOf(settings, ports...)); err != nil {
		t.Fatal(err)
	}
	outcome := func(addr string, protocol dataplane.Protocol) (netip.AddrPort, string) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		to := netip.MustParseAddrPort(addr)
		answer, err := testbed.Ask(ctx, dataplane.VIP{Addr: to.Addr(), Port: to.Port(), Protocol: protocol})
		return answer.Endpoint, testbed.Reason(err)
	}
	for addr, want := range map[string]netip.AddrPort{"127.0.0.1:31097": endpoint4, "[::1]:31097": endpoint6} {
		if got, reason := outcome(addr, dataplane.TCP); got != want {
			t.Errorf("%s over TCP: %s %s, want %s", addr, got, reason, want)
		}
		if _, reason := outcome(addr, dataplane.UDP); reason != "refused" {
			t.Errorf("%s over UDP: %q, want refused", addr, reason)
		}
	}
	for _, table := range []string{"ip", "ip6"} {
		rejected := regexp.MustCompile(`(udp|17) counter packets [1-9]`)
		if listing := list(t, "chain", table, "veridict", "reject-localhost"); !rejected.MatchString(listing) {
			t.Errorf("nothing is counted:\n%s", listing)
		}
	}
	halfClose(t, "127.0.0.1:31097")

	settings.Localhost = dataplane.LocalhostRejected
	if _, err := syncer.Sync(t.Context(), dataplane.Update{Settings: &settings}); err != nil {
		t.Fatal(err)
	}
	if _, reason := outcome("127.0.0.1:31097", dataplane.TCP); reason != "refused" {
		t.Errorf("rejected NodePorts: %q, want refused", reason)
	}
}

// halfClose sends a request, ends its direction, and reads the answer.
func halfClose(t *testing.T, addr string) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprint(conn, "GET /half HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(conn); err != nil || len(answer) == 0 {
		t.Errorf("answer after a half close: %q, %v", answer, err)
	}
}
