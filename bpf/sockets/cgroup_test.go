// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCgroup2Mounts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, table string
		want        []string
	}{
		{"nothing", "proc /proc proc rw 0 0\n", nil},
		{"version 2", "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n", []string{"/sys/fs/cgroup"}},
		{
			"version 1 beside it", "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n" +
				"cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
			[]string{"/sys/fs/cgroup/unified"},
		},
		{
			"the usual place first", "none /host/my\\040cgroups cgroup2 rw 0 0\nnone /b cgroup2 rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
			[]string{"/sys/fs/cgroup", "/host/my cgroups", "/b"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, cgroup2Mounts(test.table)); diff != "" {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFindCgroup2(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	part, whole := filepath.Join(dir, "part"), filepath.Join(dir, "whole")
	for _, path := range []string{part, whole} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(part, "cgroup.type"), []byte("domain\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	find := func(paths ...string) (string, error) {
		table := filepath.Join(t.TempDir(), "mounts")
		var text strings.Builder
		for _, path := range paths {
			text.WriteString("none " + path + " cgroup2 rw 0 0\n")
		}
		if err := os.WriteFile(table, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return findCgroup2(table)
	}
	if got, err := find(part, whole); got != whole || err != nil {
		t.Errorf("of a part and the whole %q, %v; want %q", got, err, whole)
	}
	_, err := find(part)
	if hidden, ok := errors.AsType[*HiddenRootError](err); !ok || hidden.Path != part {
		t.Errorf("only a part: %v, want a HiddenRootError about %s", err, part)
	}
	if _, err := find(); !errors.Is(err, ErrNoCgroup2) {
		t.Errorf("no mount: %v, want %v", err, ErrNoCgroup2)
	}
}
