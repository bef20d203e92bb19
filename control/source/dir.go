// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane/runner"
)

// Batch is what has changed since the batch before it. All its changes take
// effect together.
type Batch struct {
	Changes []convert.Change
	// Problems are all that there are now, sorted.
	Problems []convert.Problem
	// Synced says that the objects are complete. Nothing may be programmed
	// before that.
	Synced bool
	// Outages are what cannot be read at the moment, in words, sorted: objects may
	// have changed since.
	Outages []string
}

// Handler takes batches, one call at a time.
type Handler func(Batch)

// Options say what a [Dir] reads.
type Options struct {
	// Dir is the path of the directory.
	Dir string
	// NodeName is this node's, which decides what endpoints are local.
	NodeName string
	Logger   *slog.Logger
	// Clock is the system's clock if nil.
	Clock runner.Clock
}

// Dir is a directory of manifests. A Dir is used for one Run or one Load.
type Dir struct {
	o     Options
	index index
	// absent is what is wrong with the directory itself, nil if nothing.
	absent error
	synced bool
	// announced says that a synced batch was handed over.
	announced bool
	// reported are the problems of the last batch.
	reported []convert.Problem
}

// NewDir returns a source for a directory, which need not exist yet. It reads
// nothing.
func NewDir(o Options) *Dir {
	if o.Clock == nil {
		o.Clock = runner.RealClock{}
	}
	return &Dir{o: o, index: newIndex()}
}

// Load reads the directory once and hands over one batch. It fails if the
// directory cannot be read; what is wrong with files is in the batch.
func (d *Dir) Load(ctx context.Context, handle Handler) error {
	changes, err := d.scan(ctx)
	if err != nil {
		return err
	}
	if d.absent != nil {
		return fmt.Errorf("read manifests: %s: %w", d.o.Dir, d.absent)
	}
	handle(d.batch(changes))
	return nil
}

func (d *Dir) batch(changes []convert.Change) Batch {
	d.reported = d.problems()
	return Batch{Changes: changes, Problems: d.reported, Synced: d.synced}
}

func (d *Dir) problems() []convert.Problem {
	problems := d.index.problems()
	if d.absent != nil {
		problems = slices.Insert(problems, 0, convert.Problem{
			File: d.o.Dir, Message: "waiting for the directory, nothing is changed until it is there: " + d.absent.Error(),
		})
	}
	return problems
}

// scan looks at every file and reads those that are not as they were. The
// error is that of ctx.
func (d *Dir) scan(ctx context.Context) ([]convert.Change, error) {
	entries, err := os.ReadDir(d.o.Dir)
	if d.absent = withoutPath(err); err != nil {
		return nil, ctx.Err()
	}
	var names []string
	present := map[string]bool{}
	for _, entry := range entries {
		if isManifest(entry.Name()) {
			names = append(names, entry.Name())
			present[entry.Name()] = true
		}
	}
	for name := range d.index.files {
		if !present[name] {
			names = append(names, name)
		}
	}
	changes, err := d.scanFiles(ctx, names)
	if err == nil {
		d.synced = true
	}
	return changes, err
}

// scanNamed looks at some files only, if the directory is there.
func (d *Dir) scanNamed(ctx context.Context, names []string) ([]convert.Change, error) {
	if _, err := os.Stat(d.o.Dir); err != nil {
		d.absent = withoutPath(err)
		return nil, ctx.Err()
	}
	if d.absent != nil || !d.synced {
		return d.scan(ctx)
	}
	return d.scanFiles(ctx, names)
}

func (d *Dir) scanFiles(ctx context.Context, names []string) ([]convert.Change, error) {
	slices.Sort(names)
	var changes []convert.Change
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return changes, err
		}
		changes = append(changes, d.refresh(name)...)
	}
	return changes, nil
}

// refresh brings one file up to date.
func (d *Dir) refresh(name string) []convert.Change {
	path := filepath.Join(d.o.Dir, name)
	f := d.index.files[name]
	now, err := stampOf(path)
	if errors.Is(err, errGone) {
		if f == nil {
			return nil
		}
		return d.index.remove(f)
	}
	if errors.Is(err, errNotRegular) && f == nil {
		return nil
	}
	if f == nil {
		f = &file{name: name, path: path}
		d.index.files[name] = f
	}
	if err != nil {
		d.fail(f, err)
		return nil
	}
	if now == f.stamp {
		return nil
	}
	if now.size == 0 && len(f.objects) > 0 && d.o.Clock.Now().Sub(now.modified) < settle {
		// Somebody has cut the file and is about to write it anew.
		return nil
	}
	return d.read(f)
}

// How long a file must not have changed before an empty one is believed, and
// before its time stamp alone tells whether it changed again: the clocks of most
// file systems tick a hundred times a second or more.
const (
	settle   = time.Second
	coarsest = 100 * time.Millisecond
)

// fail keeps the objects of a file that cannot be read and tries again at the
// next scan.
func (d *Dir) fail(f *file, err error) {
	f.stamp = stamp{}
	d.index.setProblems(f, []convert.Problem{
		{Message: "cannot be read, what was read before is kept: " + withoutPath(err).Error()},
	})
}

func (d *Dir) read(f *file) []convert.Change {
	in, err := os.Open(f.path)
	if err != nil {
		d.fail(f, err)
		return nil
	}
	// Nothing was written, so there is nothing to lose in Close.
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		d.fail(f, err)
		return nil
	}
	got, err := parse(in, d.o.NodeName)
	if err != nil {
		d.fail(f, err)
		return nil
	}
	f.stamp = newStamp(info)
	if age := d.o.Clock.Now().Sub(f.stamp.modified); age >= 0 && age < coarsest {
		// It may change again within the same tick of the file system's
		// clock: read it once more at the next scan.
		f.stamp.racy = true
	}
	d.logIgnored(f, got.ignored)
	objects, twice := sorted(got.objects)
	d.index.setProblems(f, append(got.problems, twice...))
	objects = keepLastGood(f.objects, objects, &got)
	return d.index.replace(f, objects)
}

func (d *Dir) logIgnored(f *file, kinds []string) {
	for _, kind := range kinds {
		if !slices.Contains(f.ignored, kind) {
			d.o.Logger.Info("ignoring objects of a kind that has no use here", "file", f.path, "kind", kind)
		}
	}
	f.ignored = kinds
}

// sorted sorts objects by key; of several with the same key the first stays.
func sorted(objects []convert.Object) ([]convert.Object, []convert.Problem) {
	slices.SortStableFunc(objects, func(a, b convert.Object) int { return a.Key().Compare(b.Key()) })
	var problems []convert.Problem
	objects = slices.CompactFunc(objects, func(a, b convert.Object) bool {
		if a.Key() != b.Key() {
			return false
		}
		problems = append(problems, convert.Problem{
			Object: a.Key().String(), Message: "the object is in the file more than once; the first is used",
		})
		return true
	})
	return slices.Clip(objects), problems
}

// keepLastGood gives back to the objects now found what their mistakes would
// lose, and adds those of before that may still be in the file: all of them if
// some document could not be parsed.
func keepLastGood(before, now []convert.Object, got *contents) []convert.Object {
	for i, object := range now {
		mistakes := got.mistakes[object.Key()]
		if len(mistakes) == 0 {
			continue
		}
		if at, found := slices.BinarySearchFunc(before, object.Key(), compareKey); found {
			now[i] = convert.KeepServed(object, before[at], mistakes)
		}
	}
	if !got.broken && len(got.unreadable) == 0 {
		return now
	}
	var kept []convert.Object
	for _, object := range before {
		key := object.Key()
		_, found := slices.BinarySearchFunc(now, key, compareKey)
		if !found && (got.broken || got.unreadable[key]) {
			kept = append(kept, object)
		}
	}
	now = append(now, kept...)
	slices.SortFunc(now, func(a, b convert.Object) int { return a.Key().Compare(b.Key()) })
	return now
}

// withoutPath takes the path off an error of package os: it is told apart.
func withoutPath(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err
	}
	return err
}
