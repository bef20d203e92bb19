// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/source"
	"github.com/veridict/veridict/control/source/kube"
)

func service(name, ip string) *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       v1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}}},
	}
}

func endpoints(name string, addresses ...string) *discoveryv1.EndpointSlice {
	port := int32(8080)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
	}
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return slice
}

func thisNode() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}} }

// rig is a source that follows a client of objects in memory.
type rig struct {
	t      *testing.T
	client *fake.Clientset

	mu      sync.Mutex
	log     bytes.Buffer
	objects map[convert.Key]convert.Object
	last    source.Batch
	batches int
	// watched are the resources whose changes come: a write between list and watch is
	// lost on objects in memory.
	watched map[string]bool
	changed chan struct{}
}

func newRig(t *testing.T, objects ...runtime.Object) *rig {
	r := &rig{
		t: t, client: fake.NewClientset(objects...), objects: map[convert.Key]convert.Object{}, watched: map[string]bool{},
		changed: make(chan struct{}, 1),
	}
	r.client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		resource := action.GetResource()
		w, err := r.client.Tracker().Watch(resource, action.GetNamespace())
		r.mu.Lock()
		defer r.mu.Unlock()
		r.watched[resource.Resource] = true
		r.signal()
		return true, w, err
	})
	return r
}

// signal has await look again. It is called with mu held.
func (r *rig) signal() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// following waits until all changes come.
func (r *rig) following() {
	r.t.Helper()
	r.await("four watches", func() bool { return len(r.watched) == 4 })
}

func (r *rig) source() *kube.Source {
	logger := slog.New(slog.NewTextHandler(lockedWriter{r}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return kube.New(kube.Options{Client: r.client, NodeName: "here", Logger: logger})
}

// lockedWriter lets tests read the log while it is written.
type lockedWriter struct{ r *rig }

func (w lockedWriter) Write(p []byte) (int, error) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	return w.r.log.Write(p)
}

func (r *rig) start() {
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	source := r.source()
	go func() { ended <- source.Run(ctx, r.handle) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			r.t.Errorf("ended with %v", err)
		}
	})
}

func (r *rig) handle(batch source.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, change := range batch.Changes {
		if change.Object == nil {
			delete(r.objects, change.Key)
		} else {
			r.objects[change.Key] = change.Object
		}
	}
	r.last = batch
	r.batches++
	r.signal()
}

// await waits until what was handed over is as wanted.
func (r *rig) await(what string, is func() bool) {
	r.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		r.mu.Lock()
		done := is()
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-r.changed:
		case <-deadline:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.t.Fatalf("never: %s; objects %v, last batch %+v\n%s", what, r.names(), r.last, &r.log)
		}
	}
}

func (r *rig) names() []string {
	var names []string
	for key := range r.objects {
		names = append(names, key.String())
	}
	slices.Sort(names)
	return names
}

func (r *rig) synced(names ...string) {
	r.t.Helper()
	r.await(strings.Join(names, ", "), func() bool { return r.last.Synced && slices.Equal(r.names(), names) })
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}}}
	elsewhere := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}}
	r := newRig(t, service("web", "10.96.0.1"), endpoints("web", "10.244.0.1"), thisNode(), elsewhere, cidr)
	r.start()
	all := []string{"EndpointSlice shop/web-1", "Node here", "Service shop/web", "ServiceCIDR kubernetes"}
	// The fake has no field selectors.
	withOther := slices.Insert(slices.Clone(all), 1, "Node elsewhere")
	r.synced(withOther...)
	r.following()
	r.mu.Lock()
	if r.batches != 1 || len(r.last.Problems) > 0 || len(r.last.Outages) > 0 {
		t.Errorf("%d batches, problems %v, outages %v", r.batches, r.last.Problems, r.last.Outages)
	}
	r.mu.Unlock()

	must[*discoveryv1.EndpointSlice](t)(r.client.DiscoveryV1().EndpointSlices("shop").Update(t.Context(), endpoints("web", "10.244.0.1", "10.244.0.2"), metav1.UpdateOptions{}))
	r.await("two endpoints", func() bool {
		slice, ok := r.objects[convert.Key{Kind: convert.KindEndpointSlice, Name: convert.Name{Namespace: "shop", Name: "web-1"}}].(*convert.Slice)
		return ok && len(slice.Endpoints) == 2
	})
	if err := r.client.CoreV1().Services("shop").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.await("the Service to go", func() bool { return !slices.Contains(r.names(), "Service shop/web") })
}

// TestSelectors checks what the server is asked to leave out.
func TestSelectors(t *testing.T) {
	t.Parallel()
	r := newRig(t, thisNode())
	r.start()
	r.synced("Node here")
	got := map[string]string{}
	for _, action := range r.client.Actions() {
		if list, ok := action.(clienttesting.ListAction); ok {
			restrictions := list.GetListRestrictions()
			got[action.GetResource().Resource] = restrictions.Labels.String() + "|" + restrictions.Fields.String()
		}
	}
	notOurs := "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name|"
	want := map[string]string{"services": notOurs, "endpointslices": notOurs, "nodes": "|metadata.name=here", "servicecidrs": "|"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("selectors (-want +got):\n%s", diff)
	}
}

func forbidden(resource string) clienttesting.ReactionFunc {
	return func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("not allowed"))
	}
}

// TestForbidden names the kind that may not be read, and serves nothing.
func TestForbidden(t *testing.T) {
	t.Parallel()
	r := newRig(t, thisNode(), service("web", "10.96.0.1"))
	r.client.PrependReactor("list", "endpointslices", forbidden("endpointslices"))
	r.start()
	r.await("an outage", func() bool {
		return len(r.last.Outages) == 1 && strings.Contains(r.last.Outages[0], "no permission to list and watch endpointslices")
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last.Synced || len(r.objects) > 0 {
		t.Errorf("handed over %v before all was listed", r.names())
	}
}

// TestServiceCIDRsAreOptional serves without what old API servers do not have, and
// old ClusterRoles do not grant.
func TestServiceCIDRsAreOptional(t *testing.T) {
	t.Parallel()
	for name, reaction := range map[string]clienttesting.ReactionFunc{
		"forbidden": forbidden("servicecidrs"),
		"not served": func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "servicecidrs"}, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, thisNode(), service("web", "10.96.0.1"))
			r.client.PrependReactor("list", "servicecidrs", reaction)
			r.client.PrependWatchReactor("servicecidrs", func(action clienttesting.Action) (bool, watch.Interface, error) {
				_, _, err := reaction(action)
				return true, nil, err
			})
			r.start()
			r.synced("Node here", "Service shop/web")
			want := 0
			if name == "forbidden" {
				want = 1
			}
			r.await("the right outages", func() bool { return len(r.last.Outages) == want })
		})
	}
}

func TestNodeIsMissing(t *testing.T) {
	t.Parallel()
	r := newRig(t, service("web", "10.96.0.1"))
	r.start()
	r.synced("Service shop/web")
	r.following()
	want := []convert.Problem{{Object: "Node here", Message: "the API server has no such object; give the name of this node's with --node-name"}}
	r.mu.Lock()
	if diff := cmp.Diff(want, r.last.Problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	r.mu.Unlock()
	must[*v1.Node](t)(r.client.CoreV1().Nodes().Create(t.Context(), thisNode(), metav1.CreateOptions{}))
	r.await("no problem", func() bool { return len(r.last.Problems) == 0 })
}

// TestServerComesBack keeps what was read, says that the server is away, and catches
// up with what was deleted meanwhile.
func TestServerComesBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, thisNode(), service("web", "10.96.0.1"))
	var mu sync.Mutex
	away := true
	gone := func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		return away, nil, apierrors.NewServiceUnavailable("restarting")
	}
	r.client.PrependReactor("list", "services", gone)
	r.start()
	r.await("an outage", func() bool { return len(r.last.Outages) == 1 })
	mu.Lock()
	away = false
	mu.Unlock()
	r.synced("Node here", "Service shop/web")
	r.await("no outage", func() bool { return len(r.last.Outages) == 0 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if log := r.log.String(); !strings.Contains(log, "the API server answers again") || strings.Count(log, "level=WARN") != 1 {
		t.Errorf("log:\n%s", log)
	}
}

// TestUnchangedObjects hands nothing over for a write that changes nothing for a
// proxy.
func TestUnchangedObjects(t *testing.T) {
	t.Parallel()
	r := newRig(t, thisNode(), service("web", "10.96.0.1"), service("mail", "10.96.0.2"))
	r.start()
	r.synced("Node here", "Service shop/mail", "Service shop/web")
	r.following()
	labelled := service("web", "10.96.0.1")
	labelled.Labels = map[string]string{"team": "a"}
	must[*v1.Service](t)(r.client.CoreV1().Services("shop").Update(t.Context(), labelled, metav1.UpdateOptions{}))
	must[*v1.Service](t)(r.client.CoreV1().Services("shop").Update(t.Context(), service("mail", "10.96.0.3"), metav1.UpdateOptions{}))
	r.await("the second change alone", func() bool {
		if len(r.last.Changes) != 1 {
			return false
		}
		changed, ok := r.last.Changes[0].Object.(*convert.Service)
		return ok && changed.IPv4 == netip.MustParseAddr("10.96.0.3")
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.batches != 2 {
		t.Errorf("%d batches, want 2", r.batches)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	r := newRig(t, thisNode(), service("web", "10.96.0.1"))
	if err := r.source().Load(t.Context(), r.handle); err != nil {
		t.Fatal(err)
	}
	r.synced("Node here", "Service shop/web")

	r = newRig(t, thisNode())
	r.client.PrependReactor("list", "nodes", forbidden("nodes"))
	err := r.source().Load(t.Context(), r.handle)
	if want := "read objects from the API server: no permission to list and watch nodes"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}
