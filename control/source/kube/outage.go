// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/veridict/veridict/control/convert"
)

// outages are what keeps resources from being read.
type outages map[convert.Kind]string

// set returns whether anything has changed.
func (o outages) set(of *resource, err error) bool {
	text := ""
	if err != nil {
		text = describe(of, err)
	}
	if o[of.kind] == text {
		return false
	}
	if err == nil {
		delete(o, of.kind)
	} else {
		o[of.kind] = text
	}
	return true
}

// texts returns each outage once, though several kinds may have it.
func (o outages) texts() []string {
	var texts []string
	for _, text := range o {
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

// describe says what keeps a resource from being read, and what to do about it. The
// text does not change while the cause stays.
func describe(of *resource, err error) string {
	invalid, isInvalid := errors.AsType[x509.CertificateInvalidError](err)
	_, isUnknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, isNetwork := errors.AsType[net.Error](err)
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("no permission to list and watch %s; a ClusterRole must grant it (see deploy/base): %s", of.plural, short(err))
	case apierrors.IsUnauthorized(err):
		return "the API server does not accept the credentials; see the kubeconfig or the service account's token"
	case isInvalid && invalid.Reason == x509.Expired:
		return fmt.Sprintf("the API server's certificate is not valid now; is the clock of this node right? %s", short(err))
	case isInvalid, isUnknown:
		return fmt.Sprintf("the API server's certificate is not accepted; see certificate-authority in the kubeconfig: %s", short(err))
	case isNetwork:
		return fmt.Sprintf("the API server cannot be reached: %s", short(err))
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the API server does not serve %s: %s", of.plural, short(err))
	default:
		return fmt.Sprintf("cannot list and watch %s: %s", of.plural, short(err))
	}
}

// short leaves out the URL, which differs with every request.
func short(err error) string {
	if operation, ok := errors.AsType[*net.OpError](err); ok {
		if operation.Addr == nil {
			return operation.Err.Error()
		}
		return operation.Addr.String() + ": " + operation.Err.Error()
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		return request.Err.Error()
	}
	return err.Error()
}
