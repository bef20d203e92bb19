// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/veridict/veridict/control/convert"
)

func TestDescribe(t *testing.T) {
	t.Parallel()
	slices := schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	get := func(err error) error {
		return &url.Error{Op: "Get", URL: "https://10.0.0.1:6443/apis?resourceVersion=7", Err: err}
	}
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 6443}, Err: unix.ECONNREFUSED}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"RBAC":         {apierrors.NewForbidden(slices, "", errors.New("no")), "no permission to list and watch endpointslices; a ClusterRole must grant it"},
		"credentials":  {apierrors.NewUnauthorized("no"), "does not accept the credentials; see the kubeconfig"},
		"clock":        {get(x509.CertificateInvalidError{Reason: x509.Expired}), "is the clock of this node right?"},
		"authority":    {get(x509.UnknownAuthorityError{}), "see certificate-authority in the kubeconfig"},
		"network":      {get(refused), "the API server cannot be reached: 10.0.0.1:6443: connection refused"},
		"old server":   {apierrors.NewNotFound(slices, ""), "does not serve endpointslices"},
		"server error": {apierrors.NewInternalError(errors.New("etcd is full")), "cannot list and watch endpointslices: Internal error occurred: etcd is full"},
	} {
		got := describe(&resource{kind: convert.KindEndpointSlice, plural: "endpointslices"}, test.err)
		if !strings.Contains(got, test.want) || strings.Contains(got, "resourceVersion") {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestOutagesAreToldOnce: one cause of several resources is one outage.
func TestOutagesAreToldOnce(t *testing.T) {
	t.Parallel()
	c := newCollection("n")
	away := errors.New("away")
	services, nodes := &resource{kind: convert.KindService, plural: "x"}, &resource{kind: convert.KindNode, plural: "x"}
	for i, step := range []struct {
		of   *resource
		err  error
		news bool
		over bool
	}{
		{services, nil, false, false}, {services, away, true, false}, {nodes, away, false, false}, {services, away, false, false},
		{services, nil, false, false}, {nodes, errors.New("other"), true, false}, {nodes, nil, false, true},
	} {
		news, over := c.setOutage(step.of, step.err)
		if (news != "") != step.news || over != step.over {
			t.Errorf("step %d: news %q, over %v", i, news, over)
		}
	}
}
