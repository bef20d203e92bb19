// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed_test

import (
	"errors"
	"net"
	"os"
	"runtime"
	"testing"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/compare/testbed/testmain"
)

func TestDoRunsInside(t *testing.T) {
	testmain.NeedRoot(t)
	ns := mustNamespace(t)
	outside := mustReadlink(t)
	var inside string
	if err := ns.Do(func() (err error) {
		inside, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if inside == outside {
		t.Errorf("the function ran outside, in %s", outside)
	}
}

func TestDoReturnsTheError(t *testing.T) {
	testmain.NeedRoot(t)
	want := errors.New("sentinel")
	if got := mustNamespace(t).Do(func() error { return want }); !errors.Is(got, want) {
		t.Errorf("got error %v, want %v", got, want)
	}
}

func TestDoSurvivesTheEndOfItsGoroutine(t *testing.T) {
	testmain.NeedRoot(t)
	err := mustNamespace(t).Do(func() error {
		runtime.Goexit()
		return nil
	})
	if err == nil {
		t.Error("no error although the function did not return")
	}
}

// TestNoThreadStaysInside looks at all threads of the process, while many were
// inside a namespace.
func TestNoThreadStaysInside(t *testing.T) {
	testmain.NeedRoot(t)
	ns := mustNamespace(t)
	done := make(chan error)
	for range 32 {
		go func() { done <- ns.Do(func() error { return nil }) }()
	}
	for range 32 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	want := mustReadlink(t)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		got, err := os.Readlink("/proc/self/task/" + thread.Name() + "/ns/net")
		if errors.Is(err, os.ErrNotExist) {
			continue // it has ended in between
		}
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("thread %s stayed in %s, want %s", thread.Name(), got, want)
		}
	}
}

func TestNewNamespaceHasLoopbackOnly(t *testing.T) {
	testmain.NeedRoot(t)
	ns := mustNamespace(t)
	links, err := ns.Netlink().LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		isLoopback, isUp := link.Attrs().Flags&net.FlagLoopback != 0, link.Attrs().Flags&net.FlagUp != 0
		if isLoopback != isUp {
			t.Errorf("link %s: loopback %t, up %t", link.Attrs().Name, isLoopback, isUp)
		}
	}
}

func mustNamespace(t *testing.T) *testbed.Namespace {
	t.Helper()
	ns, err := testbed.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	})
	return ns
}

func mustReadlink(t *testing.T) string {
	t.Helper()
	name, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return name
}
