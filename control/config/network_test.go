// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/control/config"
	"github.com/veridict/veridict/dataplane"
)

const ownHeader = "---\napiVersion: veridict.dev/v1alpha1\nkind: VeridictConfiguration\n"

func TestNetwork(t *testing.T) {
	t.Parallel()
	cidr := netip.MustParsePrefix
	cidrs := func(texts ...string) (list []netip.Prefix) {
		for _, text := range texts {
			list = append(list, cidr(text))
		}
		return list
	}
	tests := []struct {
		name, file string
		args       []string
		want       config.Config
	}{
		{
			name: "CIDRs and keywords", file: header + `nodePortAddresses: [primary, 192.168.0.7/16, "fd00::/64"]`,
			want: defaults(func(c *config.Config) { c.NodePorts.CIDRs = cidrs("192.168.0.0/16", "fd00::/64") }),
		},
		{
			name: "all", args: []string{"--nodeport-addresses=all"},
			want: defaults(func(c *config.Config) { c.NodePorts = config.NodePorts{CIDRs: cidrs("0.0.0.0/0", "::/0")} }),
		},
		{
			name: "loopback without the switch", args: []string{"--nodeport-addresses=localhost"},
			want: defaults(func(c *config.Config) { c.NodePorts = config.NodePorts{CIDRs: cidrs("127.0.0.0/8", "::1/128")} }),
		},
		{
			name: "the switch without loopback", args: []string{"--localhost-nodeports"},
			want: defaults(func(c *config.Config) { c.Localhost = dataplane.LocalhostRejected }),
		},
		{
			name: "the switch and every address, loopback not named", args: []string{"--localhost-nodeports", "--nodeport-addresses=all"},
			want: defaults(func(c *config.Config) {
				c.NodePorts, c.Localhost = config.NodePorts{CIDRs: cidrs("0.0.0.0/0", "::/0")}, dataplane.LocalhostRejected
			}),
		},
		{
			name: "the gate and a CIDR of loopback", file: header + "featureGates: {KubeProxyNFTablesLocalhostNodePorts: true}\nnodePortAddresses: [primary, 127.0.0.1/32]",
			want: defaults(func(c *config.Config) {
				c.NodePorts.CIDRs, c.Localhost = cidrs("127.0.0.1/32"), dataplane.LocalhostProxied
			}),
		},
		{
			name: "the field and the keyword, affinity", file: header + "nodePortAddresses: [primary, localhost]\n" + ownHeader + "localhostNodePorts: true\naffinity: {maxPins: 1}\n",
			want: defaults(func(c *config.Config) {
				c.NodePorts.CIDRs, c.Localhost, c.MaxPins = cidrs("127.0.0.0/8", "::1/128"), dataplane.LocalhostProxied, 1
			}),
		},
		{
			name: "a bind address", args: []string{"--bind-address=192.168.0.1"},
			want: defaults(func(c *config.Config) { c.NodeIPs = []netip.Addr{netip.MustParseAddr("192.168.0.1")} }),
		},
		{name: "any bind address", args: []string{"--bind-address=::"}, want: defaults(func(c *config.Config) { c.Metrics.Address, c.Healthz = "[::1]:10249", "[::]:10256" })},
		{
			name: "connection tracking by flags",
			args: []string{
				"--conntrack-max-per-core=1", "--conntrack-min=2", "--conntrack-tcp-timeout-established=3s", "--conntrack-tcp-timeout-close-wait=4s",
				"--conntrack-tcp-be-liberal", "--conntrack-udp-timeout=5s", "--conntrack-udp-timeout-stream=6s",
			},
			want: defaults(func(c *config.Config) {
				c.Conntrack = config.Conntrack{
					MaxPerCore: 1, Min: 2, TCPEstablished: 3 * time.Second, TCPCloseWait: 4 * time.Second, TCPBeLiberal: true,
					UDP: 5 * time.Second, UDPStream: 6 * time.Second,
				}
			}),
		},
		{
			name: "connection tracking left alone, by the file", file: header + "conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s}",
			args: []string{"--localhost-nodeports"},
			want: defaults(func(c *config.Config) {
				c.Conntrack.MaxPerCore, c.Conntrack.TCPEstablished, c.Localhost = 0, 0, dataplane.LocalhostRejected
			}),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, warnings, err := load(t, test.file, test.args...)
			if err != nil || len(warnings) > 0 {
				t.Fatal(err, warnings)
			}
			same := cmp.Options{
				cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
			}
			if diff := cmp.Diff(test.want, got, same); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNetworkMistakesAllAtOnce(t *testing.T) {
	t.Parallel()
	_, _, err := load(t, header+`
bindAddress: localhost
nodePortAddresses: [Primary, 10.0.0.0/33]
conntrack: {maxPerCore: -1, min: -2, tcpEstablishedTimeout: -1s, tcpCloseWaitTimeout: -1s, udpTimeout: -1s, udpStreamTimeout: -1s}
`+ownHeader+"affinity: {maxPins: 0}\n")
	invalid, ok := errors.AsType[*config.Invalid](err)
	if !ok {
		t.Fatalf("error %v, want an Invalid", err)
	}
	want := []string{
		`bindAddress: "localhost" is not an IP address`,
		`nodePortAddresses[0]: "Primary" is not primary, localhost, all or a CIDR`,
		`nodePortAddresses[1]: "10.0.0.0/33" is not primary, localhost, all or a CIDR`,
		"conntrack.maxPerCore: -1 is less than 0",
		"conntrack.min: -2 is less than 0",
		"conntrack.tcpEstablishedTimeout: -1s is less than 0",
		"conntrack.tcpCloseWaitTimeout: -1s is less than 0",
		"conntrack.udpTimeout: -1s is less than 0",
		"conntrack.udpStreamTimeout: -1s is less than 0",
		"affinity.maxPins: 0 is not between 1 and 16777216",
	}
	if diff := cmp.Diff(want, invalid.Mistakes); diff != "" {
		t.Errorf("mistakes (-want +got):\n%s", diff)
	}
}
