// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDependencies(t *testing.T) {
	t.Parallel()
	for field, want := range map[string][]string{
		"": nil,
		"libc6 (>= 2.34), libnftables1 (= 1.0.6-2), debconf (>= 0.5) | debconf-2.0": {"libc6", "libnftables1", "debconf"},
		"libgcc-s1:any": {"libgcc-s1"},
	} {
		if diff := cmp.Diff(want, dependencies(field)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", field, diff)
		}
	}
}

// build writes an image of files that were made now, in a directory of its own.
func build(t *testing.T, epoch time.Time, mode os.FileMode) (digest string, archive []byte) {
	t.Helper()
	work := t.TempDir()
	binary := filepath.Join(work, "program")
	if err := os.WriteFile(binary, []byte("a program"), mode); err != nil {
		t.Fatal(err)
	}
	tree, err := userFiles(work)
	if err != nil {
		t.Fatal(err)
	}
	tree = append(tree, entry{name: "/lib/libx.so.1", link: "libx.so.1.0", mode: 0o777})
	o := options{binary: binary, archive: filepath.Join(work, "image.tar"), name: "docker.io/library/veridict:dev", epoch: epoch}
	if digest, err = write(o, work, tree, []byte("{}\n")); err != nil {
		t.Fatal(err)
	}
	if archive, err = os.ReadFile(o.archive); err != nil {
		t.Fatal(err)
	}
	return digest, archive
}

// TestSameBytes: neither when nor where the files were made is in the archive, nor what
// the umask has left of their modes.
func TestSameBytes(t *testing.T) {
	t.Parallel()
	epoch := time.Unix(1_700_000_000, 0).UTC()
	digest, archive := build(t, epoch, 0o600)
	again, same := build(t, epoch, 0o755)
	if digest != again || string(archive) != string(same) {
		t.Errorf("two builds differ: %s, %s", digest, again)
	}
	if later, _ := build(t, epoch.Add(time.Second), 0o600); later == digest {
		t.Error("the time of SOURCE_DATE_EPOCH is not in the image")
	}
}

// TestSBOM lists this test's own binary.
func TestSBOM(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	packages := []debianPackage{
		{Name: "libstdc++6", Version: "12.2.0-14+deb12u1", Arch: "amd64"}, {Name: "libstdc-6", Version: "1:2~3", Arch: "all"},
	}
	o := options{binary: self, epoch: time.Unix(1_700_000_000, 0).UTC()}
	text, err := newSBOM(o, packages)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := newSBOM(o, packages); err != nil || string(again) != string(text) {
		t.Errorf("two lists differ: %v", err)
	}
	var d spdxDocument
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.Version != "SPDX-2.3" || d.Creation.Created != "2023-11-14T22:13:20Z" || d.Namespace == "" {
		t.Errorf("document %+v", d)
	}
	urls := map[string]string{}
	ids := map[string]bool{documentID: true}
	for _, p := range d.Packages {
		if ids[p.ID] {
			t.Errorf("two packages are %s", p.ID)
		}
		ids[p.ID] = true
		for _, ref := range p.Refs {
			urls[p.Name] = ref.Locator
		}
	}
	for _, r := range d.Relationships {
		if !ids[r.From] || !ids[r.To] {
			t.Errorf("relationship %+v with what is not there", r)
		}
	}
	for name, want := range map[string]string{
		"libstdc++6": "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1?arch=amd64", "libstdc-6": "pkg:deb/debian/libstdc-6@1:2~3?arch=all",
	} {
		if urls[name] != want {
			t.Errorf("%s is %s, want %s", name, urls[name], want)
		}
	}
	if !strings.HasPrefix(urls["github.com/google/go-containerregistry"], "pkg:golang/github.com/google/go-containerregistry@v") {
		t.Errorf("modules: %v", urls)
	}
}

func TestJoinCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := joinCertificates(dir); err == nil {
		t.Error("no certificates are no mistake")
	}
	for name, text := range map[string]string{"b.crt": "B", "a.crt": "A\n\n", "README": "text"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := joinCertificates(dir); err != nil || string(got) != "A\nB\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	if err := checkStatic("/bin/sh"); !errors.Is(err, errNotStatic) || !strings.Contains(err.Error(), "/bin/sh") {
		t.Errorf("a program that needs libraries: %v", err)
	}
	if _, err := command(t.Context(), t.TempDir(), "no-such-program"); err == nil || !strings.Contains(err.Error(), "Debian") {
		t.Errorf("a machine without Debian's programs: %v", err)
	}
	if _, err := newSBOM(options{binary: "image_test.go"}, nil); err == nil || !strings.Contains(err.Error(), "image_test.go") {
		t.Errorf("no program of Go: %v", err)
	}
}
