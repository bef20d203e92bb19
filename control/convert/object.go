// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"strings"
	"unique"
)

// Kind is the kind of a converted object.
type Kind uint8

// The kinds that a proxy uses.
const (
	KindService Kind = iota + 1
	KindEndpointSlice
	KindNode
	KindServiceCIDR
)

// String returns the kind as it is written in a manifest.
func (k Kind) String() string {
	switch k {
	case KindService:
		return "Service"
	case KindEndpointSlice:
		return "EndpointSlice"
	case KindNode:
		return "Node"
	case KindServiceCIDR:
		return "ServiceCIDR"
	default:
		return "unknown kind"
	}
}

// Name is the namespace and name of an object. Namespace is empty for objects
// of the whole cluster.
type Name struct {
	Namespace, Name string
}

// String returns "namespace/name", or "name" without a namespace.
func (n Name) String() string {
	if n.Namespace == "" {
		return n.Name
	}
	return n.Namespace + "/" + n.Name
}

// Compare orders names by namespace, then name.
func (n Name) Compare(o Name) int {
	return cmp.Or(strings.Compare(n.Namespace, o.Namespace), strings.Compare(n.Name, o.Name))
}

// Key identifies an object.
type Key struct {
	Kind Kind
	Name
}

// String returns "Kind namespace/name".
func (k Key) String() string { return k.Kind.String() + " " + k.Name.String() }

// Compare orders keys by kind, then name.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Kind, o.Kind), k.Name.Compare(o.Name))
}

// Object is a *[Service], *[Slice], *[Node] or *[ServiceCIDR].
type Object interface {
	Key() Key
	// Equal says whether the other object is the same in every respect.
	Equal(other Object) bool
}

// Change is what happened to one object.
type Change struct {
	Key Key
	// Object is nil where the object is gone.
	Object Object
	// Origin is the file that the object stands in, if it came from one.
	Origin string
}

// Problem is something wrong with the input, in words for the person who wrote
// it. It never stops other objects from being used.
type Problem struct {
	// File is the path of the file; empty if the object is not from one.
	File string `json:"file,omitempty"`
	// Object is "Kind namespace/name", or where in the file it is if it has no
	// name that could be read; empty if the problem is the whole file's.
	Object string `json:"object,omitempty"`
	// Field is a path like "spec.ports[0].port"; empty if the problem is the
	// whole object's.
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// String joins the parts that are there with ": ".
func (p Problem) String() string {
	var parts []string
	for _, part := range []string{p.File, p.Object, p.Field, p.Message} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

// Compare orders problems by file, object, field and message.
func (p Problem) Compare(o Problem) int {
	return cmp.Or(
		strings.Compare(p.File, o.File), strings.Compare(p.Object, o.Object),
		strings.Compare(p.Field, o.Field), strings.Compare(p.Message, o.Message),
	)
}

// intern returns a string equal to s that is shared with other equal ones. The
// same few namespaces, node and port names stand in most objects.
func intern(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}
