// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"slices"
	"strings"

	"github.com/veridict/veridict/control/convert"
)

// file is one manifest as it was last read.
type file struct {
	name  string // without the directory
	path  string
	stamp stamp
	// objects are sorted by key, each once.
	objects  []convert.Object
	problems []convert.Problem
	ignored  []string
}

func (f *file) find(key convert.Key) convert.Object {
	at, found := slices.BinarySearchFunc(f.objects, key, compareKey)
	if !found {
		return nil
	}
	return f.objects[at]
}

func compareKey(o convert.Object, key convert.Key) int { return o.Key().Compare(key) }

func compareFile(f *file, name string) int { return strings.Compare(f.name, name) }

// index knows all files and which of them each object is taken from: the first
// in the order of their names that has it.
type index struct {
	files map[string]*file
	owner map[convert.Key]*file
	// shadowed are the other files that have an object, sorted by name.
	shadowed map[convert.Key][]*file
	// troubled are the files with problems: few, however many files there are.
	troubled map[*file]struct{}
}

func newIndex() index {
	return index{
		files:    map[string]*file{},
		owner:    map[convert.Key]*file{},
		shadowed: map[convert.Key][]*file{},
		troubled: map[*file]struct{}{},
	}
}

// setProblems replaces what is wrong with a file.
func (x *index) setProblems(f *file, problems []convert.Problem) {
	f.problems = problems
	if len(problems) == 0 {
		delete(x.troubled, f)
	} else {
		x.troubled[f] = struct{}{}
	}
}

// remove forgets a file and returns what that changes.
func (x *index) remove(f *file) []convert.Change {
	delete(x.files, f.name)
	delete(x.troubled, f)
	return x.replace(f, nil)
}

// replace gives a file new objects, sorted by key, and returns what that
// changes. Cost is in proportion to the objects of the file.
func (x *index) replace(f *file, objects []convert.Object) []convert.Change {
	var changes []convert.Change
	old := f.objects
	f.objects = objects
	for i, j := 0, 0; i < len(old) || j < len(objects); {
		order := 0
		switch {
		case i == len(old):
			order = 1
		case j == len(objects):
			order = -1
		default:
			order = old[i].Key().Compare(objects[j].Key())
		}
		switch {
		case order < 0:
			changes = x.removed(f, old[i].Key(), changes)
			i++
		case order > 0:
			changes = x.added(f, objects[j], changes)
			j++
		default:
			changes = x.changed(f, old[i], &objects[j], changes)
			i++
			j++
		}
	}
	return changes
}

func (x *index) removed(f *file, key convert.Key, changes []convert.Change) []convert.Change {
	others := x.shadowed[key]
	if x.owner[key] != f {
		x.setShadowed(key, slices.DeleteFunc(others, func(o *file) bool { return o == f }))
		return changes
	}
	if len(others) == 0 {
		delete(x.owner, key)
		return append(changes, convert.Change{Key: key, Origin: f.path})
	}
	next := others[0]
	x.owner[key] = next
	x.setShadowed(key, others[1:])
	return append(changes, convert.Change{Key: key, Object: next.find(key), Origin: next.path})
}

func (x *index) added(f *file, object convert.Object, changes []convert.Change) []convert.Change {
	key := object.Key()
	loser := f
	if owner := x.owner[key]; owner == nil || f.name < owner.name {
		x.owner[key] = f
		changes = append(changes, convert.Change{Key: key, Object: object, Origin: f.path})
		loser = owner
	}
	if loser != nil {
		others := x.shadowed[key]
		at, _ := slices.BinarySearchFunc(others, loser.name, compareFile)
		x.shadowed[key] = slices.Insert(others, at, loser)
	}
	return changes
}

// changed keeps the old value where the new one is equal, which others share.
func (x *index) changed(f *file, old convert.Object, now *convert.Object, changes []convert.Change) []convert.Change {
	if old.Equal(*now) {
		*now = old
		return changes
	}
	key := old.Key()
	if x.owner[key] != f {
		return changes
	}
	return append(changes, convert.Change{Key: key, Object: *now, Origin: f.path})
}

func (x *index) setShadowed(key convert.Key, files []*file) {
	if len(files) == 0 {
		delete(x.shadowed, key)
		return
	}
	x.shadowed[key] = files
}

// problems returns what is wrong with the files, in a stable order. Cost is in
// proportion to the problems.
func (x *index) problems() []convert.Problem {
	var all []convert.Problem
	for f := range x.troubled {
		for _, problem := range f.problems {
			problem.File = f.path
			all = append(all, problem)
		}
	}
	for key, files := range x.shadowed {
		for _, f := range files {
			all = append(all, convert.Problem{
				File: f.path, Object: key.String(),
				Message: "the object is in " + x.owner[key].path + ", too, and taken from there",
			})
		}
	}
	slices.SortFunc(all, convert.Problem.Compare)
	return all
}
