// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane"
)

// NodePorts says which of the node's addresses take NodePorts.
type NodePorts struct {
	// Primary are the node's IPs.
	Primary bool
	// CIDRs are the ranges that the node's other addresses are taken from.
	CIDRs []netip.Prefix
}

// Conntrack are the limits and timeouts of connection tracking that are set at
// start. A zero value leaves the kernel's as it is.
type Conntrack struct {
	// MaxPerCore and Min bound the number of connections: at least Min, and
	// MaxPerCore for each CPU. They only ever raise the limit.
	MaxPerCore, Min int
	// TCPEstablished and TCPCloseWait are timeouts of TCP states.
	TCPEstablished, TCPCloseWait time.Duration
	// TCPBeLiberal takes packets outside the window for valid.
	TCPBeLiberal bool
	// UDP and UDPStream are timeouts of UDP flows without and with answers.
	UDP, UDPStream time.Duration
}

// kube-proxy's defaults.
const (
	defaultMaxPerCore     = 32 * 1024
	defaultMinConntrack   = 128 * 1024
	defaultTCPEstablished = 24 * time.Hour
	defaultTCPCloseWait   = time.Hour

	defaultMaxPins = 262144
	largestMaxPins = 1 << 24
)

// Keywords of nodePortAddresses.
const (
	nodePortsPrimary   = "primary"
	nodePortsLocalhost = "localhost"
	nodePortsAll       = "all"
)

// localhostGate is kube-proxy's feature gate for NodePorts on loopback addresses.
const localhostGate = "KubeProxyNFTablesLocalhostNodePorts"

func setNetworkDefaults(in *kubeproxy.KubeProxyConfiguration, own *veridictConfiguration) {
	if len(in.NodePortAddresses) == 0 {
		in.NodePortAddresses = []string{nodePortsPrimary}
	}
	setDefault(&in.Conntrack.MaxPerCore, defaultMaxPerCore)
	setDefault(&in.Conntrack.Min, defaultMinConntrack)
	setDefault(&in.Conntrack.TCPEstablishedTimeout, metav1.Duration{Duration: defaultTCPEstablished})
	setDefault(&in.Conntrack.TCPCloseWaitTimeout, metav1.Duration{Duration: defaultTCPCloseWait})
	if own.Affinity.MaxPins == nil {
		own.Affinity.MaxPins = new(defaultMaxPins)
	}
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// setNetwork fills in what concerns addresses and connection tracking.
func (c *checker) setNetwork(config *Config, in *kubeproxy.KubeProxyConfiguration, own *veridictConfiguration) {
	config.NodeIPs = c.bindAddress(in.BindAddress)
	loopback := false
	config.NodePorts, loopback = c.nodePorts(in.NodePortAddresses)
	if own.LocalhostNodePorts || in.FeatureGates[localhostGate] {
		config.Localhost = dataplane.LocalhostRejected
		if loopback {
			config.Localhost = dataplane.LocalhostProxied
		}
	}
	config.Conntrack = c.conntrack(&in.Conntrack)
	config.MaxPins = *own.Affinity.MaxPins
	if config.MaxPins < 1 || config.MaxPins > largestMaxPins {
		c.add("affinity.maxPins", "%d is not between 1 and %d", config.MaxPins, largestMaxPins)
	}
}

// bindAddress returns the node's IP if it is given.
func (c *checker) bindAddress(text string) []netip.Addr {
	if text == "" {
		return nil
	}
	addr, err := convert.ParseAddr(text)
	if err != nil {
		c.add("bindAddress", "%v", err)
		return nil
	}
	if addr.IsUnspecified() {
		return nil
	}
	return []netip.Addr{addr}
}

// nodePorts reads keywords and CIDRs, and says whether loopback addresses are among
// them.
func (c *checker) nodePorts(words []string) (ports NodePorts, loopback bool) {
	for i, word := range words {
		switch word {
		case nodePortsPrimary:
			ports.Primary = true
		case nodePortsLocalhost:
			ports.CIDRs = append(ports.CIDRs, loopbacks()...)
		case nodePortsAll:
			ports.CIDRs = append(ports.CIDRs, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"))
		default:
			cidr, err := convert.ParsePrefix(word)
			if err != nil {
				c.add(fmt.Sprintf("nodePortAddresses[%d]", i), "%q is not %s, %s, %s or a CIDR",
					word, nodePortsPrimary, nodePortsLocalhost, nodePortsAll)
				continue
			}
			ports.CIDRs = append(ports.CIDRs, cidr)
		}
	}
	for _, cidr := range ports.CIDRs {
		for _, l := range loopbacks() {
			loopback = loopback || l.Contains(cidr.Addr()) && cidr.Bits() >= l.Bits()
		}
	}
	return ports, loopback
}

func loopbacks() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
}

func (c *checker) conntrack(in *kubeproxy.KubeProxyConntrackConfiguration) Conntrack {
	out := Conntrack{
		MaxPerCore: int(*in.MaxPerCore), Min: int(*in.Min),
		TCPEstablished: in.TCPEstablishedTimeout.Duration, TCPCloseWait: in.TCPCloseWaitTimeout.Duration,
		TCPBeLiberal: in.TCPBeLiberal, UDP: in.UDPTimeout.Duration, UDPStream: in.UDPStreamTimeout.Duration,
	}
	for _, field := range []struct {
		name     string
		negative bool
		value    any
	}{
		{"maxPerCore", out.MaxPerCore < 0, out.MaxPerCore},
		{"min", out.Min < 0, out.Min},
		{"tcpEstablishedTimeout", out.TCPEstablished < 0, out.TCPEstablished},
		{"tcpCloseWaitTimeout", out.TCPCloseWait < 0, out.TCPCloseWait},
		{"udpTimeout", out.UDP < 0, out.UDP},
		{"udpStreamTimeout", out.UDPStream < 0, out.UDPStream},
	} {
		if field.negative {
			c.add("conntrack."+field.name, "%v is less than 0", field.value)
		}
	}
	return out
}
