// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// TestRun follows a real directory through real events. Every wait is for a
// batch; a batch that does not come ends the test by its deadline.
func TestRun(t *testing.T) {
	t.Parallel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "manifests")
	dir := NewDir(Options{Dir: path, NodeName: "me", Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancelCause(t.Context())
	batches := make(chan Batch)
	ended := make(chan error)
	go func() {
		ended <- dir.Run(ctx, func(b Batch) {
			select {
			case batches <- b:
			case <-ctx.Done():
			}
		})
	}()
	place := func(name, text string) {
		t.Helper()
		staged := filepath.Join(t.TempDir(), name)
		must(os.WriteFile(staged, []byte(text), 0o600))
		must(os.Rename(staged, filepath.Join(path, name)))
	}
	next := func(what string, changes, problems int, synced bool) {
		t.Helper()
		b := <-batches
		if len(b.Changes) != changes || len(b.Problems) != problems || b.Synced != synced {
			t.Errorf("%s: %+v, want %d changes, %d problems, synced %t", what, b, changes, problems, synced)
		}
	}
	next("no directory", 0, 1, false)
	must(os.Mkdir(path, 0o755))
	next("an empty directory", 0, 0, true)
	place("a.yaml", serviceYAML("a", "172.30.0.1")+"---\n"+serviceYAML("b", "172.30.0.2"))
	next("two objects in one file", 2, 0, true)
	place("a.yaml", serviceYAML("a", "172.30.0.1")+"---\nkind: [")
	next("a broken file", 0, 1, true)
	place("a.yaml", serviceYAML("a", "172.30.0.1"))
	next("one object less", 1, 0, true)
	must(os.RemoveAll(path))
	next("the directory vanishes", 0, 1, true)
	must(os.Mkdir(path, 0o755))
	place("a.yaml", serviceYAML("a", "172.30.0.1"))
	place("b.yaml", serviceYAML("b", "172.30.0.2"))
	for changes := 0; changes < 1; {
		b := <-batches
		changes += len(b.Changes)
	}
	stop := errors.New("stop")
	cancel(stop)
	if err := <-ended; !errors.Is(err, stop) {
		t.Errorf("Run returned %v, want the cause", err)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
