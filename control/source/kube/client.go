// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"

	"github.com/veridict/veridict/control/convert"
)

// Client is the API server, as far as it is read. A clientset of client-go is one.
type Client interface {
	CoreV1() corev1client.CoreV1Interface
	DiscoveryV1() discoveryclient.DiscoveryV1Interface
	NetworkingV1() networkingclient.NetworkingV1Interface
}

// notOurs leaves out what is no service proxy's business or another one's, as
// kube-proxy's cmd/kube-proxy/app/server.go does.
const notOurs = "!" + v1.IsHeadlessService + ",!" + convert.LabelServiceProxyName

// resource says how one kind of object is read.
type resource struct {
	kind convert.Kind
	// plural is the name that RBAC rules have for it.
	plural string
	// optional resources are done without where the server has none or does not
	// let us read them.
	optional bool
	// labels and fields select objects in the server; empty selects all.
	labels, fields string
	list           func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch          func(context.Context, metav1.ListOptions) (watch.Interface, error)
	convert        func(runtime.Object) (convert.Object, []convert.Problem)
}

// resources returns everything that is read for a node.
func resources(client Client, nodeName string) []resource {
	services, nodes := client.CoreV1().Services(metav1.NamespaceAll), client.CoreV1().Nodes()
	slices, cidrs := client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll), client.NetworkingV1().ServiceCIDRs()
	return []resource{
		{
			kind: convert.KindService, plural: "services", labels: notOurs, list: lister(services.List), watch: services.Watch,
			convert: converter(convert.FromService),
		},
		{
			kind: convert.KindEndpointSlice, plural: "endpointslices", labels: notOurs, list: lister(slices.List), watch: slices.Watch,
			convert: converter(func(in *discoveryv1.EndpointSlice) (*convert.Slice, []convert.Problem) {
				return convert.FromEndpointSlice(in, nodeName)
			}),
		},
		{
			kind: convert.KindNode, plural: "nodes", fields: fields.OneTermEqualSelector(metav1.ObjectNameField, nodeName).String(),
			list: lister(nodes.List), watch: nodes.Watch, convert: converter(convert.FromNode),
		},
		{
			// Served from Kubernetes 1.33 on.
			kind: convert.KindServiceCIDR, plural: "servicecidrs", optional: true, list: lister(cidrs.List), watch: cidrs.Watch,
			convert: converter(func(in *networkingv1.ServiceCIDR) (*convert.ServiceCIDR, []convert.Problem) {
				return convert.FromServiceCIDR(in)
			}),
		},
	}
}

// lister forgets the type of a list.
func lister[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error)) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, options)
	}
}

// converter forgets the types of a conversion. Another type than that of the kind
// is converted to nil; a client sends none.
func converter[I runtime.Object, O convert.Object](from func(I) (O, []convert.Problem)) func(runtime.Object) (convert.Object, []convert.Problem) {
	return func(object runtime.Object) (convert.Object, []convert.Problem) {
		in, ok := object.(I)
		if !ok {
			return nil, nil
		}
		return from(in)
	}
}
