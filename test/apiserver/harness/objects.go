// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// writers is how many requests are under way at once.
const writers = 16

// Objects writes Services and EndpointSlices of one namespace.
type Objects struct {
	client    kubernetes.Interface
	Namespace string
}

// NewObjects makes the namespace unless it is there.
func NewObjects(ctx context.Context, client kubernetes.Interface, namespace string) (*Objects, error) {
	_, err := client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create namespace: %w", err)
	}
	return &Objects{client: client, Namespace: namespace}, nil
}

// CreateNode makes the Node.
func CreateNode(ctx context.Context, client kubernetes.Interface) error {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName, Labels: map[string]string{v1.LabelHostname: NodeName}}}
	node, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create node: %w", err)
	}
	node.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.240.0.1"}}
	if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("create node: %w", err)
	}
	return nil
}

// Service makes a Service and returns its cluster IP.
func (o *Objects) Service(ctx context.Context, name string, changes ...func(*v1.Service)) (netip.Addr, error) {
	service := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.ServiceSpec{Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}}},
	}
	for _, change := range changes {
		change(service)
	}
	made, err := o.client.CoreV1().Services(o.Namespace).Create(ctx, service, metav1.CreateOptions{})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("create service: %w", err)
	}
	return netip.ParseAddr(made.Spec.ClusterIP)
}

// ChangeService changes a Service.
func (o *Objects) ChangeService(ctx context.Context, name string, change func(*v1.Service)) error {
	services := o.client.CoreV1().Services(o.Namespace)
	service, err := services.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("change service: %w", err)
	}
	change(service)
	if _, err := services.Update(ctx, service, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("change service: %w", err)
	}
	return nil
}

func slice(service string, endpoints []netip.Addr) *discoveryv1.EndpointSlice {
	port, ready, name := int32(Port), true, ""
	protocol := v1.ProtocolTCP
	made := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	for _, endpoint := range endpoints {
		made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{endpoint.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return made
}

// SetEndpoints writes the EndpointSlice of a Service, which need not exist.
func (o *Objects) SetEndpoints(ctx context.Context, service string, endpoints ...netip.Addr) error {
	slices, object := o.client.DiscoveryV1().EndpointSlices(o.Namespace), slice(service, endpoints)
	_, err := slices.Update(ctx, object, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = slices.Create(ctx, object, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("set endpoints of %s: %w", service, err)
	}
	return nil
}

// Delete removes a Service and its EndpointSlice.
func (o *Objects) Delete(ctx context.Context, service string) error {
	if err := o.client.CoreV1().Services(o.Namespace).Delete(ctx, service, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete service: %w", err)
	}
	if err := o.client.DiscoveryV1().EndpointSlices(o.Namespace).Delete(ctx, service+"-1", metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete endpoints: %w", err)
	}
	return nil
}

// ServiceName is the name of the i-th of many Services.
func ServiceName(i int) string { return fmt.Sprintf("s%05d", i) }

// EndpointsOf are those of the i-th of many Services.
func EndpointsOf(i, endpoints int) []netip.Addr {
	addrs := make([]netip.Addr, endpoints)
	for j := range addrs {
		addrs[j] = Endpoint(i*endpoints + j)
	}
	return addrs
}

// CreateMany makes Services from..to-1 with some endpoints each, and returns the
// endpoints by VIP. progress is told how many there are.
func (o *Objects) CreateMany(ctx context.Context, from, to, endpoints int, progress func(done int)) (map[netip.Addr][]netip.Addr, error) {
	vips := make([]netip.Addr, to-from)
	var done atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range vips {
		group.Go(func() (err error) {
			name := ServiceName(from + i)
			if vips[i], err = o.Service(ctx, name); err != nil {
				return err
			}
			if err := o.SetEndpoints(ctx, name, EndpointsOf(from+i, endpoints)...); err != nil {
				return err
			}
			if n := done.Add(1); progress != nil {
				progress(int(n))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	wanted := make(map[netip.Addr][]netip.Addr, len(vips))
	for i, vip := range vips {
		wanted[vip] = EndpointsOf(from+i, endpoints)
	}
	return wanted, nil
}

// DeleteAll removes all Services and EndpointSlices of the namespace, as a namespace
// controller does.
func (o *Objects) DeleteAll(ctx context.Context) error {
	services, err := o.client.CoreV1().Services(o.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range services.Items {
		name := services.Items[i].Name
		group.Go(func() error {
			return o.client.CoreV1().Services(o.Namespace).Delete(groupCtx, name, metav1.DeleteOptions{})
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("delete services: %w", err)
	}
	if err := o.client.DiscoveryV1().EndpointSlices(o.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete endpoints: %w", err)
	}
	return nil
}

// ClusterIPs returns those of all Services of the namespace, by name.
func (o *Objects) ClusterIPs(ctx context.Context) (map[string]netip.Addr, error) {
	services, err := o.client.CoreV1().Services(o.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list services: %w", err)
	}
	ips := make(map[string]netip.Addr, len(services.Items))
	for i := range services.Items {
		if ips[services.Items[i].Name], err = netip.ParseAddr(services.Items[i].Spec.ClusterIP); err != nil {
			return nil, fmt.Errorf("service %s: %w", services.Items[i].Name, err)
		}
	}
	return ips, nil
}
