// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/veridict/veridict/test/apiserver/harness"
)

// memoryEndpoints are those of each Service.
const memoryEndpoints = 5

const protobuf = "application/vnd.kubernetes.protobuf"

// stillServer answers lists, and watches that tell nothing: an API server would take
// an hour to allocate so many cluster IPs.
type stillServer struct{ lists map[string][]byte }

func newStillServer(services int) (*stillServer, error) {
	serviceList, sliceList := &v1.ServiceList{}, &discoveryv1.EndpointSliceList{}
	for i := range services {
		ip := fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255)
		name := harness.ServiceName(i)
		serviceList.Items = append(serviceList.Items, v1.Service{
			ObjectMeta: stillMeta(name, nil),
			Spec: v1.ServiceSpec{
				ClusterIP: ip, ClusterIPs: []string{ip}, Type: v1.ServiceTypeClusterIP, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
				Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}}, Selector: map[string]string{"app": name},
			},
		})
		sliceList.Items = append(sliceList.Items, stillSlice(name, i))
	}
	s := &stillServer{lists: map[string][]byte{}}
	for path, list := range map[string]runtime.Object{
		"/api/v1/services": serviceList, "/apis/discovery.k8s.io/v1/endpointslices": sliceList,
		"/api/v1/nodes": &v1.NodeList{}, "/apis/networking.k8s.io/v1/servicecidrs": &networkingv1.ServiceCIDRList{},
	} {
		text, err := encode(list)
		if err != nil {
			return nil, err
		}
		s.lists[path] = text
	}
	return s, nil
}

func stillMeta(name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "bench", Name: name, UID: "01234567-89ab-cdef-0123-456789abcdef", ResourceVersion: "1", Labels: labels,
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{},"f:protocol":{}}}}}`),
		}},
	}
}

func stillSlice(service string, i int) discoveryv1.EndpointSlice {
	port, protocol, name, yes := int32(harness.Port), v1.ProtocolTCP, "", true
	node, zone := fmt.Sprintf("node-%d", i%1000), "zone-a"
	made := discoveryv1.EndpointSlice{
		ObjectMeta:  stillMeta(service+"-x7k2p", map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}),
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	for j := range memoryEndpoints {
		n := i*memoryEndpoints + j
		made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 128+n>>16, n>>8&255, n&255)},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes}, NodeName: &node, Zone: &zone,
			TargetRef: &v1.ObjectReference{Kind: "Pod", Namespace: "bench", Name: fmt.Sprintf("%s-%d", service, j), UID: "01234567-89ab-cdef-0123-456789abcdef"},
		})
	}
	return made
}

func encode(list runtime.Object) ([]byte, error) {
	info, found := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), protobuf)
	if !found {
		return nil, errors.New("no protobuf")
	}
	kinds, _, err := scheme.Scheme.ObjectKinds(list)
	if err != nil {
		return nil, err
	}
	accessor, err := metaList(list)
	if err != nil {
		return nil, err
	}
	accessor.SetResourceVersion("1")
	return runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, schema.GroupVersions{kinds[0].GroupVersion()}), list)
}

func metaList(list runtime.Object) (metav1.ListInterface, error) {
	accessor, ok := list.(metav1.ListMetaAccessor)
	if !ok {
		return nil, fmt.Errorf("%T is no list", list)
	}
	return accessor.GetListMeta(), nil
}

// ServeHTTP is part of http.Handler.
func (s *stillServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	list, found := s.lists[r.URL.Path]
	switch query := r.URL.Query(); {
	case !found:
		http.NotFound(w, r)
	case query.Get("sendInitialEvents") != "":
		http.Error(w, "not here", http.StatusBadRequest)
	case query.Get("watch") != "":
		w.Header().Set("Content-Type", protobuf+";stream=watch")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		w.Header().Set("Content-Type", protobuf)
		_, _ = w.Write(list)
	}
}

// measureMemory has veridict follow a cluster that is too large for an API server here.
func (b *bench) measureMemory(ctx context.Context) error {
	progress("memory with %d Services", b.options.memory)
	still, err := newStillServer(b.options.memory)
	if err != nil {
		return fmt.Errorf("make objects: %w", err)
	}
	server := httptest.NewServer(still)
	defer server.Close()
	defer server.CloseClientConnections()
	log, err := os.Create(filepath.Join(b.dir, "memory.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(b.options.programs, veridict), "run", "--master", server.URL, "--node-name", harness.NodeName,
		"--cluster-cidr", harness.PodCIDR, "--socket", filepath.Join(b.dir, "memory.sock"), "--conntrack-max-per-core", "0")
	cmd.Stdout, cmd.Stderr = log, log
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	for {
		text, err := os.ReadFile(log.Name())
		if err != nil {
			return err
		}
		if strings.Contains(string(text), fmt.Sprintf("msg=synced servicePorts=%d ", b.options.memory)) {
			break
		}
		if time.Since(begin) > startTimeout {
			return fmt.Errorf("nothing is programmed after %s: %s", startTimeout, text)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	took := time.Since(begin)
	if err := pause(ctx, settle); err != nil {
		return err
	}
	rss, peak, err := memory(cmd.Process.Pid)
	if err != nil {
		return err
	}
	subject := fmt.Sprintf("%d Services with %d endpoints, from a server that only lists", b.options.memory, memoryEndpoints)
	b.report.Figures = append(b.report.Figures,
		figure{Subject: subject, Name: "start until programmed, ms", Veridict: milliseconds(took)},
		figure{Subject: subject, Name: "memory, MiB", Veridict: rss}, figure{Subject: subject, Name: "peak memory, MiB", Veridict: peak})
	out, err := exec.CommandContext(ctx, "nft", "flush", "ruleset").CombinedOutput()
	if err != nil {
		return fmt.Errorf("nft flush ruleset: %w: %s", err, out)
	}
	return nil
}
