// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/control/api"
)

// entries are the names in a directory.
func entries(t *testing.T, directory string) []string {
	t.Helper()
	list, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, entry := range list {
		names = append(names, entry.Name())
	}
	return names
}

func TestSocketIsItsOwners(t *testing.T) {
	path := socketPath(t)
	serve(t, options(t, path))
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := info.Mode(), fs.ModeSocket|0o600; got != want {
		t.Errorf("mode %v, want %v", got, want)
	}
	if diff := cmp.Diff([]string{"s"}, entries(t, filepath.Dir(path))); diff != "" {
		t.Errorf("beside the socket (-want +got):\n%s", diff)
	}
}

// Run ends with the cause of its context, with clients connected or not, and leaves
// nothing.
func TestSocketEnds(t *testing.T) {
	for _, connected := range []bool{false, true} {
		o := options(t, socketPath(t))
		stop, ended := start(t, o)
		client := newClient(t, o.Path)
		if connected {
			if _, err := client.Status(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		cause := errors.New("enough")
		stop(cause)
		if err := <-ended; !errors.Is(err, cause) {
			t.Errorf("connected %t: Run ended with %v, want %v", connected, err, cause)
		}
		if diff := cmp.Diff([]string{}, entries(t, filepath.Dir(o.Path))); diff != "" {
			t.Errorf("connected %t: left behind (-want +got):\n%s", connected, diff)
		}
	}
}

// A client that was connected to an agent talks to the next one.
func TestSocketOfTheNextAgent(t *testing.T) {
	o := options(t, socketPath(t))
	client := newClient(t, o.Path)
	for _, version := range []string{"v1", "v2"} {
		o.Agent.Version = version
		stop, ended := start(t, o)
		status, err := client.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if status.Agent.Version != version {
			t.Errorf("the answer is of %s, want %s", status.Agent.Version, version)
		}
		stop(nil)
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v, want that it was told to", err)
		}
	}
}

func TestSocketThatWasLeft(t *testing.T) {
	o := options(t, socketPath(t))
	if err := os.MkdirAll(filepath.Dir(o.Path), 0o700); err != nil {
		t.Fatal(err)
	}
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: o.Path})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	serve(t, o)
	if _, err := newClient(t, o.Path).Status(t.Context()); err != nil {
		t.Errorf("on a socket that took another's place: %v", err)
	}
}

// What is not the socket of a dead process stays as it is.
func TestSocketThatIsTaken(t *testing.T) {
	directory := t.TempDir()
	living := filepath.Join(directory, "living")
	serve(t, options(t, living))
	file := filepath.Join(directory, "file")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, path, want string }{
		{"by a living process", living, "another process listens on " + living + ": name another socket with --socket"},
		{"by a file", file, file + " is no socket: name another with --socket"},
		{"by a directory", directory, directory + " is no socket: name another with --socket"},
		{"a file where a directory should be", filepath.Join(file, "s"), "make the directory of the socket: mkdir " + file + ": not a directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := api.NewServer(options(t, tc.path)).Run(t.Context())
			if err == nil || err.Error() != tc.want {
				t.Errorf("Run ended with %v, want %s", err, tc.want)
			}
		})
	}
	if _, err := newClient(t, living).Status(t.Context()); err != nil {
		t.Errorf("the living one does not answer any more: %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "text" {
		t.Errorf("the file is %q, %v", text, err)
	}
}
