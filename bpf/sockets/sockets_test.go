// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRedirectRefusesOtherAddresses(t *testing.T) {
	t.Parallel()
	for from, to := range map[string]string{
		"127.0.0.1:30080": "fd00::1", "127.0.0.2:30080": "127.0.0.1", "127.0.0.3:30080": "::ffff:10.0.0.1",
		"[::1]:30080": "10.0.0.1", "[::1]:30081": "fe80::1%eth0", "[::1]:30082": "::1",
	} {
		err := new(Programs).Redirect(netip.MustParseAddrPort(from), unix.IPPROTO_TCP, netip.MustParseAddr(to))
		if err == nil || !strings.Contains(err.Error(), to) {
			t.Errorf("redirect %s to %s: %v, want an error that names the address", from, to, err)
		}
	}
}

func TestPermissionErrorSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		missing []string
		want    string
	}{
		{[]string{"CAP_BPF"}, "not permitted without CAP_BPF: load: operation not permitted"},
		{[]string{"CAP_BPF", "CAP_NET_ADMIN"}, "not permitted without CAP_BPF and CAP_NET_ADMIN: load: operation not permitted"},
		{nil, "not permitted although CAP_BPF and CAP_NET_ADMIN are there: a seccomp filter or a security module forbids it: load: operation not permitted"},
	} {
		err := &PermissionError{Missing: test.missing, Err: fmt.Errorf("load: %w", unix.EPERM)}
		if err.Error() != test.want {
			t.Errorf("missing %q: %q, want %q", test.missing, err, test.want)
		}
	}
}

// Each map says in BTF what is in it, so that bpftool prints names; the programs are
// for the hooks that they are attached to.
func TestCompiledPrograms(t *testing.T) {
	t.Parallel()
	spec, err := loadKernel()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range pinnedMaps() {
		if m := spec.Maps[name]; m.Key == nil || m.Value == nil {
			t.Errorf("map %s does not say what is in it", name)
		}
	}
	hooks := new(Programs).hooks()
	for _, h := range hooks {
		if program := spec.Programs[h.name]; program == nil || program.AttachType != h.attach {
			t.Errorf("program %s is %v, want one for %s", h.name, program, h.attach)
		}
	}
	if len(hooks) != len(spec.Programs) {
		t.Errorf("%d programs are attached of %d", len(hooks), len(spec.Programs))
	}
}

func TestRemoveLeavesWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	if err := Remove(""); err != nil {
		t.Error(err)
	}
	dir := filepath.Join(t.TempDir(), "sockets")
	if err := Remove(dir); err != nil {
		t.Errorf("a directory that is not there: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ours, foreign := linkPin(dir, kernelProgConnect4), filepath.Join(dir, "foreign")
	for _, path := range []string{ours, foreign, filepath.Join(dir, kernelMapNodePorts)} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Remove(dir); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "foreign" {
		t.Errorf("left: %v, %v; want what is foreign", left, err)
	}
	if err := os.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the empty directory is still there: %v", err)
	}
}
