// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"sync"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/source"
)

// collection holds the objects of all kinds and what has happened since the last
// batch.
type collection struct {
	nodeName string
	// woken receives when there is something to take.
	woken chan struct{}

	mu      sync.Mutex
	objects map[convert.Key]convert.Object
	// problems are those of objects, of which few have any.
	problems map[convert.Key][]convert.Problem
	// listed are the kinds that were listed once, or are done without.
	listed map[convert.Kind]bool
	// changes are what the next batch has; each object once, at the place that
	// position says.
	changes  []convert.Change
	position map[convert.Key]int
	outages  outages
	// dirty says that there is something to take; news, that it is about outages.
	dirty, news bool
}

func newCollection(nodeName string) *collection {
	return &collection{
		nodeName: nodeName, woken: make(chan struct{}, 1), objects: map[convert.Key]convert.Object{},
		problems: map[convert.Key][]convert.Problem{}, listed: map[convert.Kind]bool{}, position: map[convert.Key]int{},
		outages: outages{},
	}
}

// wake is called with mu held.
func (c *collection) wake() {
	c.dirty = true
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// update takes one object; nil is one that is gone.
func (c *collection) update(key convert.Key, made *item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(key, made)
}

// replace takes all objects of a kind.
func (c *collection) replace(kind convert.Kind, items map[convert.Key]*item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.objects {
		if _, found := items[key]; key.Kind == kind && !found {
			c.set(key, nil)
		}
	}
	for key, made := range items {
		c.set(key, made)
	}
	if !c.listed[kind] {
		c.listed[kind] = true
		c.wake()
	}
}

func (c *collection) set(key convert.Key, made *item) {
	before := c.objects[key]
	if made == nil || made.object == nil {
		if before != nil {
			delete(c.objects, key)
			c.setProblems(key, nil)
			c.change(key, nil)
		}
		return
	}
	c.setProblems(key, made.problems)
	if before == nil || !before.Equal(made.object) {
		c.objects[key] = made.object
		c.change(key, made.object)
	}
}

func (c *collection) setProblems(key convert.Key, problems []convert.Problem) {
	if slices.Equal(c.problems[key], problems) {
		return
	}
	if len(problems) == 0 {
		delete(c.problems, key)
	} else {
		c.problems[key] = problems
	}
	c.wake()
}

func (c *collection) change(key convert.Key, object convert.Object) {
	change := convert.Change{Key: key, Object: object}
	if at, found := c.position[key]; found {
		c.changes[at] = change
	} else {
		c.position[key] = len(c.changes)
		c.changes = append(c.changes, change)
	}
	c.wake()
}

// excuse has a kind done without until it is listed.
func (c *collection) excuse(kind convert.Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.listed[kind] {
		c.listed[kind] = true
		c.wake()
	}
}

// setOutage notes what keeps a resource from being read, nil for nothing. It returns
// what is new, in words, and whether the last outage has ended.
func (c *collection) setOutage(of *resource, err error) (news string, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.outages.texts()
	if !c.outages.set(of, err) {
		return "", false
	}
	c.news = true
	c.wake()
	if text := c.outages[of.kind]; !slices.Contains(before, text) {
		news = text
	}
	return news, len(c.outages) == 0
}

// take returns the next batch, and whether there is any. Before all kinds were
// listed it has no changes.
func (c *collection) take() (source.Batch, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.dirty {
		return source.Batch{}, false
	}
	news := c.news
	c.dirty, c.news = false, false
	batch := source.Batch{Outages: c.outages.texts()}
	if len(missing(c.listed)) > 0 {
		return batch, news
	}
	batch.Synced = true
	batch.Changes, c.changes, c.position = c.changes, nil, map[convert.Key]int{}
	batch.Problems = c.allProblems()
	return batch, true
}

func (c *collection) allProblems() []convert.Problem {
	var all []convert.Problem
	for _, problems := range c.problems {
		all = append(all, problems...)
	}
	node := convert.Key{Kind: convert.KindNode, Name: convert.Name{Name: c.nodeName}}
	if c.objects[node] == nil {
		all = append(all, convert.Problem{
			Object: node.String(), Message: "the API server has no such object; give the name of this node's with --node-name",
		})
	}
	slices.SortFunc(all, convert.Problem.Compare)
	return all
}

// notListed returns the kinds that were not listed yet.
func (c *collection) notListed() []convert.Kind {
	c.mu.Lock()
	defer c.mu.Unlock()
	return missing(c.listed)
}
