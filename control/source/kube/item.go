// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/veridict/veridict/control/convert"
)

// item is a converted object with the little that a reflector asks of any.
type item struct {
	namespace, name, version string
	// complete marks the bookmark that ends the initial objects of a watch.
	complete bool
	object   convert.Object
	problems []convert.Problem
}

// GetObjectKind is part of runtime.Object.
func (i *item) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject is part of runtime.Object. Converted objects are immutable.
func (i *item) DeepCopyObject() runtime.Object {
	copied := *i
	return &copied
}

// GetObjectMeta is part of metav1.ObjectMetaAccessor. It is made when it is asked
// for: kept, it would be larger than most objects.
func (i *item) GetObjectMeta() metav1.Object {
	object := &metav1.ObjectMeta{Namespace: i.namespace, Name: i.name, ResourceVersion: i.version}
	if i.complete {
		object.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	return object
}

// itemList is a list as a reflector wants it.
type itemList struct {
	metav1.ListMeta
	Items []item
}

// GetObjectKind is part of runtime.Object.
func (l *itemList) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject is part of runtime.Object.
func (l *itemList) DeepCopyObject() runtime.Object {
	return &itemList{ListMeta: *l.DeepCopy(), Items: append([]item(nil), l.Items...)}
}
