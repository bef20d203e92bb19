// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane"
)

const (
	// kube-proxy's default.
	defaultSyncPeriod = 30 * time.Second
	// defaultMinSyncPeriod is less than kube-proxy's second: a sync costs in
	// proportion to what has changed, and a change after another one should not wait.
	defaultMinSyncPeriod = 50 * time.Millisecond
)

// The local detectors that kube-proxy has.
const (
	detectClusterCIDR     = "ClusterCIDR"
	detectNodeCIDR        = "NodeCIDR"
	detectBridgeInterface = "BridgeInterface"
	detectInterfacePrefix = "InterfaceNamePrefix"
)

func setDefaults(in *kubeproxy.KubeProxyConfiguration, own *veridictConfiguration) {
	if in.NFTables.SyncPeriod.Duration == 0 {
		in.NFTables.SyncPeriod.Duration = defaultSyncPeriod
	}
	if in.NFTables.MinSyncPeriod.Duration == 0 {
		in.NFTables.MinSyncPeriod.Duration = defaultMinSyncPeriod
	}
	if in.DetectLocalMode == "" {
		in.DetectLocalMode = detectClusterCIDR
	}
	if own.Layout == "" {
		own.Layout = LayoutMarkFree
	}
	setClientDefaults(in)
	setNetworkDefaults(in, own)
	own.Observe.setDefaults()
	setMetricsDefaults(in, &own.Metrics)
	setProcessDefaults(in)
}

// checker collects mistakes.
type checker struct{ mistakes []string }

func (c *checker) add(field, format string, args ...any) {
	c.mistakes = append(c.mistakes, field+": "+fmt.Sprintf(format, args...))
}

// check makes the configuration of complete input, or says all that is wrong
// with it.
func check(in *kubeproxy.KubeProxyConfiguration, own *veridictConfiguration) (Config, []string) {
	var c checker
	config := Config{
		NodeName:      strings.ToLower(strings.TrimSpace(in.HostnameOverride)),
		Layout:        own.Layout,
		MinSyncPeriod: in.NFTables.MinSyncPeriod.Duration,
		SyncPeriod:    in.NFTables.SyncPeriod.Duration,
		MasqueradeAll: in.NFTables.MasqueradeAll || in.Mode != modeNFTables && in.IPTables.MasqueradeAll,
	}
	if errs := validation.IsDNS1123Subdomain(config.NodeName); len(errs) > 0 {
		c.add("hostnameOverride", "%q is not the name of a node: %s", config.NodeName, errs[0])
	}
	if config.Layout != LayoutMarkFree && config.Layout != LayoutCTMark {
		c.add("layout", "%q is not %s or %s", config.Layout, LayoutMarkFree, LayoutCTMark)
	}
	if !slices.Contains([]kubeproxy.ProxyMode{"", modeNFTables, modeIPTables, modeIPVS}, in.Mode) {
		c.add("mode", "%q is not a mode for Linux; use %s, the one that veridict has, or leave it empty", in.Mode, modeNFTables)
	}
	if config.SyncPeriod < 0 {
		c.add("nftables.syncPeriod", "%s is not greater than 0", config.SyncPeriod)
	}
	if config.MinSyncPeriod < 0 {
		c.add("nftables.minSyncPeriod", "%s is less than 0", config.MinSyncPeriod)
	}
	if config.MinSyncPeriod > config.SyncPeriod {
		c.add("nftables.minSyncPeriod", "%s is greater than nftables.syncPeriod, %s", config.MinSyncPeriod, config.SyncPeriod)
	}
	c.setDetector(&config, in)
	c.setNetwork(&config, in, own)
	config.Observe = c.observe(&own.Observe)
	config.Metrics = c.metrics(in, &own.Metrics)
	config.Client = c.client(in)
	c.setProcess(&config, in)
	return config, c.mistakes
}

func (c *checker) setDetector(config *Config, in *kubeproxy.KubeProxyConfiguration) {
	// Like kube-proxy, an address range that is not used is checked all the
	// same.
	cidrs := c.clusterCIDRs(in.ClusterCIDR)
	switch in.DetectLocalMode {
	case detectClusterCIDR:
		config.LocalDetector.CIDRs = cidrs
	case detectNodeCIDR:
		config.NodeCIDR = true
	case detectBridgeInterface:
		config.LocalDetector.Interface = c.interfaceName("detectLocal.bridgeInterface", in.DetectLocal.BridgeInterface)
	case detectInterfacePrefix:
		config.LocalDetector.InterfacePrefix = c.interfaceName("detectLocal.interfaceNamePrefix", in.DetectLocal.InterfaceNamePrefix)
	default:
		c.add("detectLocalMode", "%q is not %s, %s, %s or %s", in.DetectLocalMode,
			detectClusterCIDR, detectNodeCIDR, detectBridgeInterface, detectInterfacePrefix)
	}
}

func (c *checker) clusterCIDRs(text string) []netip.Prefix {
	if text == "" {
		return nil
	}
	var cidrs []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		cidr, err := convert.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			c.add("clusterCIDR", "%v", err)
			continue
		}
		cidrs = append(cidrs, cidr)
	}
	if len(cidrs) > 2 || len(cidrs) == 2 && dataplane.FamilyOf(cidrs[0].Addr()) == dataplane.FamilyOf(cidrs[1].Addr()) {
		c.add("clusterCIDR", "%q: at most one CIDR of each family", text)
	}
	return convert.FirstPerFamily(cidrs)
}

// maxInterfaceName is IFNAMSIZ without the final zero.
const maxInterfaceName = 15

// interfaceName checks a name that becomes part of a rule.
func (c *checker) interfaceName(field, name string) string {
	switch {
	case name == "":
		c.add(field, "is empty, but detectLocalMode needs it")
	case len(name) > maxInterfaceName:
		c.add(field, "%q is longer than %d bytes", name, maxInterfaceName)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"*/\`, r) }):
		c.add(field, "%q has characters that an interface name cannot have", name)
	}
	return name
}
