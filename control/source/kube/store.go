// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"slices"

	"github.com/veridict/veridict/control/convert"
)

// store takes the objects of one resource from its reflector.
type store struct {
	kind convert.Kind
	all  *collection
}

// Add is part of cache.ReflectorStore.
func (s *store) Add(object any) error { return s.Update(object) }

// Update is part of cache.ReflectorStore.
func (s *store) Update(object any) error {
	made, err := asItem(object)
	if err != nil {
		return err
	}
	s.all.update(s.key(made), made)
	return nil
}

// Delete is part of cache.ReflectorStore.
func (s *store) Delete(object any) error {
	made, err := asItem(object)
	if err != nil {
		return err
	}
	s.all.update(s.key(made), nil)
	return nil
}

// Replace is part of cache.ReflectorStore.
func (s *store) Replace(objects []any, _ string) error {
	items := make(map[convert.Key]*item, len(objects))
	for _, object := range objects {
		made, err := asItem(object)
		if err != nil {
			return err
		}
		items[s.key(made)] = made
	}
	s.all.replace(s.kind, items)
	return nil
}

// Resync is part of cache.ReflectorStore; nobody asks for any.
func (s *store) Resync() error { return nil }

func (s *store) key(made *item) convert.Key {
	if made.object != nil {
		return made.object.Key()
	}
	return convert.Key{Kind: s.kind, Name: convert.Name{Namespace: made.namespace, Name: made.name}}
}

func asItem(object any) (*item, error) {
	made, ok := object.(*item)
	if !ok {
		return nil, fmt.Errorf("a reflector handed over a %T", object)
	}
	return made, nil
}

// kinds lists the kinds of which all must have been listed.
func kinds() []convert.Kind {
	return []convert.Kind{convert.KindService, convert.KindEndpointSlice, convert.KindNode, convert.KindServiceCIDR}
}

// missing returns the kinds that are not among those given.
func missing(have map[convert.Kind]bool) []convert.Kind {
	return slices.DeleteFunc(kinds(), func(kind convert.Kind) bool { return have[kind] })
}
