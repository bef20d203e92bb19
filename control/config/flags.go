// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// Flags holds what stands on the command line.
type Flags struct {
	set              *pflag.FlagSet
	configFile       string
	nodeName         string
	hostnameOverride string
	layout           string
	proxyMode        string
	clusterCIDR      string
	detectLocalMode  string
	bridgeInterface  string
	interfacePrefix  string
	masqueradeAll    bool
	syncPeriod       time.Duration
	minSyncPeriod    time.Duration
	network          networkFlags
	observe          observeFlags
	metrics          metricsFlags
	client           clientFlags
}

// networkFlags are those about addresses and connection tracking.
type networkFlags struct {
	nodePortAddresses  []string
	bindAddress        string
	localhostNodePorts bool
	maxPerCore, min    int32

	tcpEstablished, tcpCloseWait time.Duration
	tcpBeLiberal                 bool
	udp, udpStream               time.Duration
}

func (f *networkFlags) add(set *pflag.FlagSet) {
	set.StringSliceVar(&f.nodePortAddresses, "nodeport-addresses", nil,
		"which addresses take NodePorts: `CIDRs`, primary, localhost or all (default primary)")
	set.StringVar(&f.bindAddress, "bind-address", "", "`IP` of the node (default that of the Node object)")
	set.BoolVar(&f.localhostNodePorts, "localhost-nodeports", false,
		"answer NodePorts on the loopback addresses of --nodeport-addresses (TCP; UDP where BPF programs can), reject all others there")
	set.Int32Var(&f.maxPerCore, "conntrack-max-per-core", defaultMaxPerCore, "tracked connections per CPU, 0 leaves the limit as it is")
	set.Int32Var(&f.min, "conntrack-min", defaultMinConntrack, "least limit of tracked connections")
	set.DurationVar(&f.tcpEstablished, "conntrack-tcp-timeout-established", defaultTCPEstablished, "timeout of idle TCP connections, 0 leaves it as it is")
	set.DurationVar(&f.tcpCloseWait, "conntrack-tcp-timeout-close-wait", defaultTCPCloseWait, "timeout of TCP connections in CLOSE_WAIT, 0 leaves it as it is")
	set.BoolVar(&f.tcpBeLiberal, "conntrack-tcp-be-liberal", false, "take TCP packets outside the window for valid")
	set.DurationVar(&f.udp, "conntrack-udp-timeout", 0, "timeout of UDP flows without an answer, 0 leaves it as it is")
	set.DurationVar(&f.udpStream, "conntrack-udp-timeout-stream", 0, "timeout of UDP flows, 0 leaves it as it is")
}

// fill puts the flags into the form of a file.
func (f *networkFlags) fill(in *kubeproxy.KubeProxyConfiguration) {
	in.NodePortAddresses, in.BindAddress = f.nodePortAddresses, f.bindAddress
	in.Conntrack = kubeproxy.KubeProxyConntrackConfiguration{
		MaxPerCore: &f.maxPerCore, Min: &f.min, TCPBeLiberal: f.tcpBeLiberal,
		TCPEstablishedTimeout: &metav1.Duration{Duration: f.tcpEstablished},
		TCPCloseWaitTimeout:   &metav1.Duration{Duration: f.tcpCloseWait},
		UDPTimeout:            metav1.Duration{Duration: f.udp},
		UDPStreamTimeout:      metav1.Duration{Duration: f.udpStream},
	}
}

func networkFlagNames() []string {
	return []string{
		"nodeport-addresses", "bind-address", "conntrack-max-per-core", "conntrack-min", "conntrack-tcp-timeout-established",
		"conntrack-tcp-timeout-close-wait", "conntrack-tcp-be-liberal", "conntrack-udp-timeout", "conntrack-udp-timeout-stream",
	}
}

// AddFlags adds the flags to a set. Those that kube-proxy has carry its names.
func AddFlags(set *pflag.FlagSet) *Flags {
	f := &Flags{set: set}
	set.StringVar(&f.configFile, "config", "", "KubeProxyConfiguration `file`; it overrides most other flags")
	set.StringVar(&f.nodeName, "node-name", "", "`name` of this node (default --hostname-override, or the host's name)")
	set.StringVar(&f.layout, "layout", "", "kernel layout: markfree or ctmark (default markfree)")
	set.StringVar(&f.hostnameOverride, "hostname-override", "", "`name` of this node instead of the host's name")
	set.StringVar(&f.proxyMode, "proxy-mode", "", "nftables, the only mode there is, or empty")
	set.StringVar(&f.clusterCIDR, "cluster-cidr", "", "`CIDR` of the pods, or one per family separated by a comma")
	set.StringVar(&f.detectLocalMode, "detect-local-mode", "",
		"how to recognise local pods: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix (default ClusterCIDR)")
	set.StringVar(&f.bridgeInterface, "pod-bridge-interface", "", "bridge `interface` of the pods, for --detect-local-mode BridgeInterface")
	set.StringVar(&f.interfacePrefix, "pod-interface-name-prefix", "",
		"`prefix` of the names of the pods' interfaces, for --detect-local-mode InterfaceNamePrefix")
	set.BoolVar(&f.masqueradeAll, "masquerade-all", false, "masquerade all traffic to cluster IPs")
	set.DurationVar(&f.syncPeriod, "iptables-sync-period", defaultSyncPeriod, "longest pause before a failed sync is tried again")
	set.DurationVar(&f.minSyncPeriod, "iptables-min-sync-period", defaultMinSyncPeriod, "least pause between two syncs")
	f.network.add(set)
	f.observe.add(set)
	f.metrics.add(set)
	f.client.add(set)
	return f
}

// overridden returns the flags that were given and that the file overrides.
func (f *Flags) overridden() []string {
	var names []string
	f.set.Visit(func(flag *pflag.Flag) {
		if isFileFlag(flag.Name) {
			names = append(names, "--"+flag.Name)
		}
	})
	return names
}

// Load makes the configuration. Warnings are for the log. hostname is asked
// for the node's name where nothing else tells. The error is an [Invalid] where
// the input is to blame.
func (f *Flags) Load(hostname func() (string, error)) (Config, []string, error) {
	var warnings []string
	in, own, where := f.kubeProxy(), veridictConfiguration{}, "flags"
	if f.configFile != "" {
		where = f.configFile
		var err error
		if in, own, err = readFile(f.configFile); err != nil {
			return Config{}, nil, err
		}
		if names := f.overridden(); len(names) > 0 {
			warnings = append(warnings, fmt.Sprintf("--config decides; ignored: %s", strings.Join(names, ", ")))
		}
	}
	if f.hostnameOverride != "" {
		in.HostnameOverride = f.hostnameOverride
	}
	if f.nodeName != "" {
		in.HostnameOverride = f.nodeName
	}
	if f.layout != "" {
		own.Layout = Layout(f.layout)
	}
	f.observe.override(&own.Observe)
	f.metrics.override(&own.Metrics)
	own.LocalhostNodePorts = own.LocalhostNodePorts || f.network.localhostNodePorts
	if strings.TrimSpace(in.HostnameOverride) == "" {
		name, err := hostname()
		if err != nil {
			return Config{}, nil, fmt.Errorf("find the node's name (give --node-name): %w", err)
		}
		in.HostnameOverride = name
	}
	setDefaults(&in, &own)
	config, mistakes := check(&in, &own)
	if len(mistakes) > 0 {
		return Config{}, nil, &Invalid{Where: where, Mistakes: mistakes}
	}
	config.Client.Master = f.client.master
	return config, warnings, nil
}

// isFileFlag says whether a flag stands for a field of the file and counts only
// without one. All other flags always count.
func isFileFlag(name string) bool {
	return slices.Contains(networkFlagNames(), name) || slices.Contains(clientFlagNames(), name) || slices.Contains([]string{
		"proxy-mode", "cluster-cidr", "detect-local-mode", "pod-bridge-interface", "pod-interface-name-prefix",
		"masquerade-all", "iptables-sync-period", "iptables-min-sync-period", flagMetricsAddress, flagHardFail,
	}, name)
}

// kubeProxy is what the flags say, in the form of a file.
func (f *Flags) kubeProxy() kubeproxy.KubeProxyConfiguration {
	var in kubeproxy.KubeProxyConfiguration
	in.Mode = kubeproxy.ProxyMode(f.proxyMode)
	in.ClusterCIDR = f.clusterCIDR
	in.DetectLocalMode = kubeproxy.LocalMode(f.detectLocalMode)
	in.DetectLocal.BridgeInterface = f.bridgeInterface
	in.DetectLocal.InterfaceNamePrefix = f.interfacePrefix
	in.NFTables.MasqueradeAll = f.masqueradeAll
	in.NFTables.SyncPeriod.Duration = f.syncPeriod
	in.NFTables.MinSyncPeriod.Duration = f.minSyncPeriod
	f.network.fill(&in)
	f.metrics.fill(&in)
	f.client.fill(&in)
	return in
}
