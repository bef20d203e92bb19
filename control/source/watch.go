// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane/runner"
)

// How long to wait after an event, so that what belongs together is seen
// together. A rename puts a whole file in place and needs next to no wait; a
// writer may need several writes, and a directory is removed file by file.
const (
	quietRename = 5 * time.Millisecond
	quietWrite  = 100 * time.Millisecond
	// quietMax bounds the wait while events keep coming.
	quietMax = time.Second
	// pollPause is the pause between two looks at all files, which catch what
	// events missed; it grows with the cost of a look to at most a fiftieth
	// of the time.
	pollPause = time.Second
	pollShare = 50
	// maxNames is how many files are looked at one by one; for more it is
	// cheaper to look at all.
	maxNames     = 100
	configMapDir = "..data"
)

// Run reads the directory and follows it until ctx is done. It waits for a
// directory that does not exist. The first batch that is synced is complete;
// each further one has what changed. The error is the cause of ctx.
func (d *Dir) Run(ctx context.Context, handle Handler) error {
	w := watcher{dir: d.o.Dir, clock: d.o.Clock}
	if err := w.open(); err != nil {
		d.o.Logger.Warn("cannot watch for file changes, looking once a second instead", "dir", d.o.Dir, "err", err)
	}
	defer w.close()
	for todo := (seen{all: true}); ; {
		if todo.all {
			// Before the scan, so that no change falls between the two.
			if err := w.follow(); err != nil {
				d.o.Logger.Debug("the directory is not watched", "dir", d.o.Dir, "err", err)
			}
		}
		start := d.o.Clock.Now()
		changes, err := d.look(ctx, todo)
		if err != nil {
			return context.Cause(ctx)
		}
		d.deliver(changes, handle)
		if todo, err = w.wait(ctx, max(pollPause, pollShare*d.o.Clock.Now().Sub(start))); err != nil {
			return err
		}
	}
}

func (d *Dir) look(ctx context.Context, todo seen) ([]convert.Change, error) {
	if todo.all {
		return d.scan(ctx)
	}
	return d.scanNamed(ctx, todo.names)
}

// deliver hands over a batch if there is anything new in it.
func (d *Dir) deliver(changes []convert.Change, handle Handler) {
	wasReported, problems := d.reported, d.problems()
	first := d.synced && !d.announced
	if len(changes) == 0 && !first && slices.Equal(wasReported, problems) {
		return
	}
	d.announced = d.synced
	d.reported = problems
	handle(Batch{Changes: changes, Problems: problems, Synced: d.synced})
}

// seen is what events have told.
type seen struct {
	all   bool
	names []string
}

// watcher follows a directory, also one that comes and goes. Without an
// fsnotify watcher only the polling is left.
type watcher struct {
	dir   string
	clock runner.Clock
	fs    *fsnotify.Watcher
	// followed is the directory that events come from.
	followed os.FileInfo
}

func (w *watcher) open() error {
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	w.fs = fs
	return nil
}

func (w *watcher) close() {
	if w.fs != nil {
		_ = w.fs.Close()
	}
}

// follow makes events come from the directory that is now at the path.
func (w *watcher) follow() error {
	if w.fs == nil {
		return nil
	}
	info, err := os.Stat(w.dir)
	if err != nil {
		w.followed = nil
		return err
	}
	if w.followed != nil && os.SameFile(w.followed, info) && len(w.fs.WatchList()) > 0 {
		return nil
	}
	// There may be none, or one of a directory that is gone.
	_ = w.fs.Remove(w.dir)
	if err := w.fs.Add(w.dir); err != nil {
		return fmt.Errorf("watch %s: %w", w.dir, err)
	}
	w.followed = info
	return nil
}

// wait returns what was seen: the names of files once no more events come, or
// everything after the pause. The error is the cause of ctx.
func (w *watcher) wait(ctx context.Context, pause time.Duration) (seen, error) {
	var got seen
	var events chan fsnotify.Event
	var failures chan error
	if w.fs != nil {
		events, failures = w.fs.Events, w.fs.Errors
	}
	poll := w.clock.NewTimer(pause)
	defer poll.Stop()
	var first, until time.Time
	for {
		var quiet <-chan time.Time
		stop := func() {}
		if !until.IsZero() {
			timer := w.clock.NewTimer(until.Sub(w.clock.Now()))
			quiet, stop = timer.C(), timer.Stop
		}
		select {
		case <-ctx.Done():
			stop()
			return got, context.Cause(ctx)
		case <-poll.C():
			stop()
			if until.IsZero() {
				return seen{all: true}, nil
			}
			// A look now could fall between two steps of a change.
			got.all = true
		case <-quiet:
			return got, nil
		case err := <-failures:
			got.all = true
			until = w.clock.Now()
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				w.followed = nil
			}
		case event := <-events:
			pause := got.add(event, w.dir)
			if pause == 0 {
				break
			}
			now := w.clock.Now()
			if first.IsZero() {
				first = now
			}
			until = later(until, now.Add(pause))
			if last := first.Add(quietMax); until.After(last) {
				until = last
			}
		}
		stop()
	}
}

// add notes an event and returns how long to wait for more, 0 if the event is
// of no interest.
func (s *seen) add(event fsnotify.Event, dir string) time.Duration {
	name := filepath.Base(event.Name)
	switch {
	case filepath.Clean(event.Name) == filepath.Clean(dir) || name == configMapDir:
		s.all = true
	case !isManifest(name):
		return 0
	case len(s.names) >= maxNames:
		s.all = true
	case !slices.Contains(s.names, name):
		s.names = append(s.names, name)
	}
	if event.Has(fsnotify.Create) || event.Has(fsnotify.Chmod) {
		return quietRename
	}
	return quietWrite
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
