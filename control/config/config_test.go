// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/veridict/veridict/control/config"
	"github.com/veridict/veridict/dataplane"
)

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// load runs the flags, with --config for a file of the given text if there is
// one. "FILE" stands for its path in what is returned.
func load(t *testing.T, file string, args ...string) (config.Config, []string, error) {
	t.Helper()
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags := config.AddFlags(set)
	if file != "" {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	return flags.Load(func() (string, error) { return "Host.Example", nil })
}

func defaults(change func(*config.Config)) config.Config {
	c := config.Config{
		NodeName: "host.example", Layout: config.LayoutMarkFree, MinSyncPeriod: 50 * time.Millisecond, SyncPeriod: 30 * time.Second,
		NodePorts: config.NodePorts{Primary: true}, Conntrack: defaultConntrack(), MaxPins: 262144,
		Observe: config.Observe{MaxSelections: 262144, Interval: 5 * time.Second},
		Metrics: config.Metrics{Address: "127.0.0.1:10249", ServiceLimit: 1000, EndpointLimit: 1000},
		Client:  config.Client{ContentType: "application/vnd.kubernetes.protobuf", QPS: 5, Burst: 10},
		Healthz: "0.0.0.0:10256", OOMScoreAdj: -999,
	}
	if change != nil {
		change(&c)
	}
	return c
}

func defaultConntrack() config.Conntrack {
	return config.Conntrack{MaxPerCore: 32768, Min: 131072, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/64")
	tests := []struct {
		name, file string
		args       []string
		want       config.Config
		warnings   []string
	}{
		{name: "nothing given", want: defaults(nil)},
		{
			name: "flags",
			args: []string{
				"--node-name=N1", "--hostname-override=other", "--cluster-cidr=10.0.0.0/8,fd00::/64", "--masquerade-all",
				"--iptables-min-sync-period=2s", "--iptables-sync-period=1m", "--layout=ctmark", "--proxy-mode=nftables",
			},
			want: defaults(func(c *config.Config) {
				c.NodeName, c.Layout, c.MinSyncPeriod, c.SyncPeriod = "n1", config.LayoutCTMark, 2*time.Second, time.Minute
				c.LocalDetector, c.MasqueradeAll = dataplane.LocalDetector{CIDRs: []netip.Prefix{v4, v6}}, true
			}),
		},
		{
			name: "bridge by flags", args: []string{"--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cbr0"},
			want: defaults(func(c *config.Config) { c.LocalDetector.Interface = "cbr0" }),
		},
		{
			name: "prefix by flags", args: []string{"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"},
			want: defaults(func(c *config.Config) { c.LocalDetector.InterfacePrefix = "veth" }),
		},
		{name: "a file with nothing in it", file: header, want: defaults(nil)},
		{
			name: "flags go before the file",
			file: header + "hostnameOverride: file\nclusterCIDR: 10.0.0.0/8\nnftables: {minSyncPeriod: 2s}\n---\napiVersion: veridict.dev/v1alpha1\nkind: VeridictConfiguration\nlayout: markfree\n",
			args: []string{"--masquerade-all", "--cluster-cidr=fd00::/64", "--hostname-override=flag", "--layout=ctmark", "--iptables-min-sync-period=2s"},
			want: defaults(func(c *config.Config) {
				c.NodeName, c.Layout, c.LocalDetector.CIDRs = "flag", config.LayoutCTMark, []netip.Prefix{v6}
				c.MasqueradeAll, c.MinSyncPeriod = true, 2*time.Second
			}),
			warnings: []string{"these flags override what config.yaml says: --cluster-cidr"},
		},
		{
			name: "the layout of the file",
			file: "---\napiVersion: veridict.dev/v1alpha1\nkind: VeridictConfiguration\nlayout: ctmark\n---\n" + header,
			want: defaults(func(c *config.Config) { c.Layout = config.LayoutCTMark }),
		},
		{
			name: "NodeCIDR", file: header + "detectLocalMode: NodeCIDR\nclusterCIDR: 10.0.0.0/8\n",
			want: defaults(func(c *config.Config) { c.NodeCIDR = true }),
		},
		{
			name: "fields that have no use here",
			file: header + `
bindAddress: 0.0.0.0
healthzBindAddress: 0.0.0.0:10256
clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 5}
configSyncPeriod: 15m0s
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
featureGates: {X: true}
iptables: {masqueradeBit: 14, localhostNodePorts: true, syncPeriod: 0s}
ipvs: {scheduler: rr, excludeCIDRs: null}
logging: {format: json, verbosity: 2}
mode: nftables
nftables: {masqueradeAll: true, masqueradeBit: 14, syncPeriod: 30s, minSyncPeriod: 10ms}
nodePortAddresses: [primary]
oomScoreAdj: null
winkernel: {enableDSR: false}
`,
			want: defaults(func(c *config.Config) {
				c.MasqueradeAll, c.MinSyncPeriod, c.Conntrack = true, 10*time.Millisecond, config.Conntrack{}
				c.Client.Kubeconfig, c.Log = "/var/lib/kube-proxy/kubeconfig.conf", config.Log{JSON: true, Verbosity: 2}
			}),
			warnings: []string{"these settings of kube-proxy have no meaning here and are ignored: featureGates.X, iptables.masqueradeBit, " +
				"iptables.localhostNodePorts, ipvs.scheduler, nftables.masqueradeBit, configSyncPeriod"},
		},
		{
			name: "what kubeadm writes",
			file: header + `
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.0.0.0/8
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null, udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, udpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: ""
mode: ""
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
`,
			want: defaults(func(c *config.Config) {
				c.LocalDetector.CIDRs, c.Client.Kubeconfig = []netip.Prefix{v4}, "/var/lib/kube-proxy/kubeconfig.conf"
			}),
		},
		{
			name: "kube-proxy in iptables mode",
			file: header + "mode: iptables\niptables: {masqueradeAll: true, masqueradeBit: 14, syncPeriod: 1m}\nipvs: {scheduler: rr, strictARP: true}\n" +
				"featureGates: {B: true, A: false}\nnftables: {masqueradeBit: 14}\nconfigSyncPeriod: 15m\nportRange: 1-2\n",
			want: defaults(func(c *config.Config) { c.MasqueradeAll = true }),
			warnings: []string{"these settings of kube-proxy have no meaning here and are ignored: mode iptables, featureGates.A, featureGates.B, " +
				"iptables.masqueradeBit, iptables.syncPeriod, ipvs.scheduler, ipvs.strictARP, nftables.masqueradeBit, configSyncPeriod, portRange"},
		},
		{
			name: "iptables settings in nftables mode", file: header + "mode: nftables\niptables: {masqueradeAll: true}\n", want: defaults(nil),
			warnings: []string{"these settings of kube-proxy have no meaning here and are ignored: iptables.masqueradeAll"},
		},
		{
			name: "the process by flags", args: []string{
				"--healthz-bind-address=", "--oom-score-adj=7", "--logging-format=json", "--profiling", "--kubeconfig=/k", "--master=https://m",
				"--kube-api-content-type=application/json", "--kube-api-qps=1.5", "--kube-api-burst=3",
			},
			want: defaults(func(c *config.Config) {
				c.Healthz, c.OOMScoreAdj, c.Log.JSON, c.Metrics.Profiling = "", 7, true, true
				c.Client = config.Client{Kubeconfig: "/k", Master: "https://m", ContentType: "application/json", QPS: 1.5, Burst: 3}
			}),
		},
		{
			name: "the process by the file",
			file: header + "healthzBindAddress: 127.0.0.1\noomScoreAdj: 0\nlogging: {format: json, verbosity: 5}\nenableProfiling: true\n",
			want: defaults(func(c *config.Config) {
				c.Healthz, c.OOMScoreAdj, c.Log, c.Metrics.Profiling = "127.0.0.1:10256", 0, config.Log{JSON: true, Verbosity: 5}, true
			}),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, warnings, err := load(t, test.file, test.args...)
			if err != nil {
				t.Fatal(err)
			}
			same := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
			if diff := cmp.Diff(test.want, got, same); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
			for i := range warnings {
				warnings[i] = regexp.MustCompile(`/\S*/`).ReplaceAllString(warnings[i], "")
			}
			if diff := cmp.Diff(test.warnings, warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, file string
		args       []string
		want       []string
	}{
		{
			name: "unknown fields", file: header + "clusterCidr: 10.0.0.0/8\nnftables: {syncperiod: 1s}\n",
			want: []string{`document 1: unknown field "clusterCidr"`, `document 1: unknown field "nftables.syncperiod"`},
		},
		{
			name: "in the second document, too",
			file: header + "---\napiVersion: veridict.dev/v1alpha1\nkind: VeridictConfiguration\nlayuot: ctmark\n",
			want: []string{`document 2: unknown field "layuot"`},
		},
		{
			name: "wrong type", file: header + "nftables: {masqueradeAll: 17}\n",
			want: []string{"document 1: json: cannot unmarshal number into Go struct field KubeProxyNFTablesConfiguration.nftables.masqueradeAll of type bool"},
		},
		{
			name: "another kind", file: "apiVersion: v1\nkind: Pod\n",
			want: []string{`document 1: apiVersion "v1", kind "Pod": want kubeproxy.config.k8s.io/v1alpha1, KubeProxyConfiguration or veridict.dev/v1alpha1, VeridictConfiguration`},
		},
		{name: "twice", file: header + "---\n" + header, want: []string{"document 2: a second KubeProxyConfiguration"}},
		{
			name: "a key twice", file: header + "mode: nftables\nmode: nftables\n",
			want: []string{`document 1: yaml: unmarshal errors:   line 4: key "mode" already set in map`},
		},
		{
			name: "everything at once",
			file: header + "mode: kernelspace\nclusterCIDR: 10.0.0.0/8,11.0.0.0/8\nhostnameOverride: a_b\nnftables: {minSyncPeriod: 2m}\ndetectLocalMode: Guess\n",
			args: []string{"--layout=other"},
			want: []string{
				"hostnameOverride: \"a_b\" is not the name of a node: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
				`layout: "other" is not markfree or ctmark`,
				`mode: "kernelspace" is not a mode for Linux; use nftables, the one that veridict has, or leave it empty`,
				"nftables.minSyncPeriod: 2m0s is greater than nftables.syncPeriod, 30s",
				`clusterCIDR: "10.0.0.0/8,11.0.0.0/8": at most one CIDR of each family`,
				`detectLocalMode: "Guess" is not ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix`,
			},
		},
		{name: "no bridge", args: []string{"--detect-local-mode=BridgeInterface"}, want: []string{"detectLocal.bridgeInterface: is empty, but detectLocalMode needs it"}},
		{
			name: "an interface for a ruleset", args: []string{"--detect-local-mode=BridgeInterface", `--pod-bridge-interface=a" drop`},
			want: []string{`detectLocal.bridgeInterface: "a\" drop" has characters that an interface name cannot have`},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := load(t, test.file, test.args...)
			invalid, ok := errors.AsType[*config.Invalid](err)
			if !ok {
				t.Fatalf("error %v, want an Invalid", err)
			}
			if diff := cmp.Diff(test.want, invalid.Mistakes); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
			if strings.Contains(err.Error(), "\n") || (test.file == "") != (invalid.Where == "flags") {
				t.Errorf("error: %v", err)
			}
		})
	}
}
