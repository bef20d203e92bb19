// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"

	"github.com/spf13/pflag"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// Client says how the API server is reached and spoken to.
type Client struct {
	// Kubeconfig is the path of a file, empty for none; Master is the URL of a server
	// that goes before the file's. With neither, the pod's service account tells.
	Kubeconfig, Master string
	// ContentType is what objects are asked for in.
	ContentType string
	// QPS and Burst bound requests other than the few of watches.
	QPS   float32
	Burst int
}

// kube-proxy's defaults.
const (
	contentProtobuf = "application/vnd.kubernetes.protobuf"
	contentJSON     = "application/json"
	defaultQPS      = 5
	defaultBurst    = 10
)

func setClientDefaults(in *kubeproxy.KubeProxyConfiguration) {
	if in.ClientConnection.ContentType == "" {
		in.ClientConnection.ContentType = contentProtobuf
	}
	if in.ClientConnection.QPS == 0 {
		in.ClientConnection.QPS = defaultQPS
	}
	if in.ClientConnection.Burst == 0 {
		in.ClientConnection.Burst = defaultBurst
	}
}

// clientFlags are those about the API server. A file has no place for the master.
type clientFlags struct {
	kubeconfig, master, contentType string
	qps                             float32
	burst                           int32
}

func (f *clientFlags) add(set *pflag.FlagSet) {
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `file` (default the pod's service account)")
	set.StringVar(&f.master, "master", "", "`URL` of the API server, before that of the kubeconfig")
	set.StringVar(&f.contentType, "kube-api-content-type", contentProtobuf, "content `type` of requests: "+contentProtobuf+" or "+contentJSON)
	set.Float32Var(&f.qps, "kube-api-qps", defaultQPS, "requests per second to the API server, on average")
	set.Int32Var(&f.burst, "kube-api-burst", defaultBurst, "requests to the API server at once")
}

func (f *clientFlags) bindings() []binding {
	return []binding{
		bind("kubeconfig", func(in *fileConfig) *string { return &in.ClientConnection.Kubeconfig }, &f.kubeconfig),
		bind("kube-api-content-type", func(in *fileConfig) *string { return &in.ClientConnection.ContentType }, &f.contentType),
		bind("kube-api-qps", func(in *fileConfig) *float32 { return &in.ClientConnection.QPS }, &f.qps),
		bind("kube-api-burst", func(in *fileConfig) *int32 { return &in.ClientConnection.Burst }, &f.burst),
	}
}

func (c *checker) client(in *kubeproxy.KubeProxyConfiguration) Client {
	connection := in.ClientConnection
	if !slices.Contains([]string{contentProtobuf, contentJSON}, connection.ContentType) {
		c.add("clientConnection.contentType", "%q is not %s or %s", connection.ContentType, contentProtobuf, contentJSON)
	}
	if connection.Burst < 0 {
		c.add("clientConnection.burst", "%d is less than 0", connection.Burst)
	}
	return Client{
		Kubeconfig: connection.Kubeconfig, ContentType: connection.ContentType, QPS: connection.QPS, Burst: int(connection.Burst),
	}
}
