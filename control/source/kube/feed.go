// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

const (
	// listTimeout bounds one list; client-go would wait for ever.
	listTimeout = 5 * time.Minute
	// absentPause is the time until a resource that the server does not have is
	// asked for again.
	absentPause = 10 * time.Minute
)

// feed lists and watches one resource for a reflector.
type feed struct {
	resource
	// noted is told how each request ended, nil for well.
	noted func(*resource, error)
}

func (f *feed) listWatch() *cache.ListWatch {
	return &cache.ListWatch{ListWithContextFunc: f.listItems, WatchFuncWithContext: f.watchItems}
}

func (f *feed) selected(options metav1.ListOptions) metav1.ListOptions {
	options.LabelSelector, options.FieldSelector = f.labels, f.fields
	return options
}

func (f *feed) listItems(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	objects, err := f.list(ctx, f.selected(options))
	if f.absent(err) {
		f.noted(&f.resource, nil)
		return &itemList{}, nil
	}
	f.noted(&f.resource, err)
	if err != nil {
		return nil, err
	}
	head, err := meta.ListAccessor(objects)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", f.plural, err)
	}
	items := &itemList{Items: make([]item, 0, meta.LenList(objects))}
	items.ResourceVersion, items.Continue = head.GetResourceVersion(), head.GetContinue()
	err = meta.EachListItem(objects, func(object runtime.Object) error {
		made, err := f.item(object)
		if err == nil {
			items.Items = append(items.Items, *made)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", f.plural, err)
	}
	return items, nil
}

func (f *feed) watchItems(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	objects, err := f.watch(ctx, f.selected(options))
	switch {
	case options.SendInitialEvents != nil && refusesInitialEvents(err):
		// The reflector lists, which tells whether anything is amiss.
		return nil, err
	case f.absent(err):
		f.noted(&f.resource, nil)
		idle := watch.NewFake()
		time.AfterFunc(absentPause, idle.Stop)
		return idle, nil
	}
	f.noted(&f.resource, err)
	if err != nil {
		return nil, err
	}
	return watch.Filter(objects, func(event watch.Event) (watch.Event, bool) {
		if event.Type == watch.Error {
			return event, true
		}
		made, err := f.item(event.Object)
		if err != nil {
			return watch.Event{}, false
		}
		event.Object = made
		return event, true
	}), nil
}

// absent says whether an optional resource is not served at all.
func (f *feed) absent(err error) bool { return f.optional && apierrors.IsNotFound(err) }

// refusesInitialEvents says whether the server cannot stream a list (before
// Kubernetes 1.34, or with an old etcd), or does not have the resource.
func refusesInitialEvents(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsBadRequest(err)
}

func (f *feed) item(object runtime.Object) (*item, error) {
	head, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	made := &item{namespace: head.GetNamespace(), name: head.GetName(), version: head.GetResourceVersion()}
	made.complete = head.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
	made.object, made.problems = f.convert(object)
	return made, nil
}
