// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/dataplane"
)

// kernelFake is a Redirector that remembers, and refuses ports that are full.
type kernelFake struct {
	led  map[string]string
	full map[uint16]bool
	log  []string
}

func name(from netip.AddrPort, protocol uint8) string {
	return fmt.Sprintf("%s/%s", from, dataplane.Protocol(protocol))
}

func (k *kernelFake) Redirect(from netip.AddrPort, protocol uint8, to netip.Addr) error {
	if k.full[from.Port()] {
		return errors.New("no room")
	}
	k.led[name(from, protocol)] = to.String()
	k.log = append(k.log, "redirect "+name(from, protocol))
	return nil
}

func (k *kernelFake) Withdraw(from netip.AddrPort, protocol uint8) error {
	delete(k.led, name(from, protocol))
	k.log = append(k.log, "withdraw "+name(from, protocol))
	return nil
}

func (k *kernelFake) Retain(keep func(netip.AddrPort, uint8) bool) error {
	for led := range k.led {
		addr, protocol, _ := strings.Cut(led, "/")
		number := dataplane.TCP
		if protocol == "udp" {
			number = dataplane.UDP
		}
		if !keep(netip.MustParseAddrPort(addr), uint8(number)) {
			delete(k.led, led)
		}
	}
	return nil
}

// redirectRig is a rig with a Redirector and a target for IPv4.
type redirectRig struct {
	*rig
	kernel *kernelFake
}

func newRedirectRig(t *testing.T) *redirectRig {
	r := &redirectRig{newRig(t), &kernelFake{led: map[string]string{"127.0.0.1:30999/udp": "10.0.0.9"}, full: map[uint16]bool{}}}
	if err := r.syncer.Close(); err != nil {
		t.Fatal(err)
	}
	clear(r.listeners)
	r.syncer = New(inner{}, r.syncer.o)
	r.syncer.redirector.Redirector = r.kernel
	return r
}

func (r *redirectRig) reset(ports ...dataplane.ServicePort) {
	r.t.Helper()
	state := dataplane.State{Settings: r.settings("10.0.0.1"), ServicePorts: map[dataplane.ServicePortKey]dataplane.ServicePort{}}
	for _, sp := range ports {
		state.ServicePorts[sp.Key] = sp
	}
	if _, err := r.syncer.Reset(r.t.Context(), state); err != nil {
		r.t.Fatal(err)
	}
}

func (r *redirectRig) settings(targets ...string) dataplane.Settings {
	settings := dataplane.Settings{Localhost: dataplane.LocalhostProxied}
	for _, target := range targets {
		settings.LocalhostTargets = append(settings.LocalhostTargets, netip.MustParseAddr(target))
	}
	return settings
}

// port returns a ServicePort that is served on a NodePort.
func (r *redirectRig) port(name string, protocol dataplane.Protocol, nodePort uint16) dataplane.ServicePort {
	sp := r.sp
	sp.Key.Name, sp.Key.Protocol, sp.External = name, protocol, &dataplane.External{NodePort: nodePort}
	return sp
}

// want compares what is led elsewhere and what the proxy listens on.
func (r *redirectRig) want(what string, led map[string]string, proxied ...string) {
	r.t.Helper()
	if diff := cmp.Diff(led, r.kernel.led); diff != "" {
		r.t.Errorf("%s: redirected (-want +got):\n%s", what, diff)
	}
	var got []string
	for key := range r.syncer.proxies {
		got = append(got, key.Name)
	}
	slices.Sort(got)
	if diff := cmp.Diff(proxied, got); diff != "" {
		r.t.Errorf("%s: proxied (-want +got):\n%s", what, diff)
	}
}

func TestRedirectedPortsNeedNoProxy(t *testing.T) {
	r := newRedirectRig(t)
	web, dns := r.port("web", dataplane.TCP, 30080), r.port("dns", dataplane.UDP, 30053)
	six := r.port("six", dataplane.TCP, 30080)
	six.Key.Family = dataplane.IPv6
	sctp := r.port("sctp", dataplane.SCTP, 30080)
	r.reset(web, dns, six, sctp)
	led := map[string]string{"127.0.0.1:30080/tcp": "10.0.0.1", "127.0.0.1:30053/udp": "10.0.0.1"}
	r.want("at the start, without a target for IPv6", led, "six")

	settings := r.settings("10.0.0.2", "fd00::1")
	r.sync(dataplane.Update{Settings: &settings})
	moved := map[string]string{"127.0.0.1:30080/tcp": "10.0.0.2", "127.0.0.1:30053/udp": "10.0.0.2", "[::1]:30080/tcp": "fd00::1"}
	r.want("another address, and one of IPv6: the proxy stays for what is open", moved, "six")

	settings = r.settings()
	r.sync(dataplane.Update{Settings: &settings})
	r.want("no address any more", map[string]string{}, "six", "web")

	settings.Localhost = dataplane.LocalhostRejected
	r.sync(dataplane.Update{Settings: &settings})
	r.want("rejected", map[string]string{})
}

func TestRedirectionsFollowServicePorts(t *testing.T) {
	r := newRedirectRig(t)
	web := r.port("web", dataplane.TCP, 30080)
	r.reset(web)
	r.kernel.log = nil
	other := r.port("other", dataplane.TCP, 30080)
	r.sync(dataplane.Update{Changed: []dataplane.ServicePort{other}, Removed: []dataplane.ServicePortKey{web.Key}})
	other.External = &dataplane.External{NodePort: 30081}
	r.sync(dataplane.Update{Changed: []dataplane.ServicePort{other}})
	r.sync(dataplane.Update{Removed: []dataplane.ServicePortKey{other.Key}})
	want := []string{
		"redirect 127.0.0.1:30080/tcp", "redirect 127.0.0.1:30081/tcp", "withdraw 127.0.0.1:30080/tcp", "withdraw 127.0.0.1:30081/tcp",
	}
	if diff := cmp.Diff(want, r.kernel.log); diff != "" {
		t.Errorf("a port passes on, changes its number, ends (-want +got):\n%s", diff)
	}
	r.want("at the end", map[string]string{})
}

func TestRefusedRedirectionIsProxiedAndTriedAgain(t *testing.T) {
	r := newRedirectRig(t)
	r.kernel.full[30080] = true
	r.reset(r.port("web", dataplane.TCP, 30080), r.port("dns", dataplane.UDP, 30080))
	r.want("refused", map[string]string{}, "web")
	if n := strings.Count(r.log.String(), "no room"); n != 2 || r.syncer.Failures() != 2 {
		t.Errorf("%d lines, %d failures, want 2 and 2:\n%s", n, r.syncer.Failures(), r.log.String())
	}
	r.kernel.full[30080] = false
	if report := r.sync(dataplane.Update{}); !report.Due.IsZero() {
		t.Errorf("due %s, although nothing is", report.Due)
	}
	r.want("room again", map[string]string{"127.0.0.1:30080/tcp": "10.0.0.1", "127.0.0.1:30080/udp": "10.0.0.1"}, "web")
}
