// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/veridict/veridict/compare/testbed/testmain"
)

// TestContents: what runs in the image is veridict, nft and their loader, and what is in
// it is listed.
func TestContents(t *testing.T) {
	testmain.NeedRoot(t)
	root, err := rootFS()
	if err != nil {
		t.Fatal("unpack the image:", err)
	}
	var programs []string
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 || info.Mode().Perm()&0o022 != 0 {
			t.Errorf("%s is %s", path, info.Mode())
		}
		if name := strings.TrimPrefix(path, root); info.Mode().Perm()&0o111 != 0 && !strings.Contains(filepath.Base(name), ".so.") {
			programs = append(programs, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/usr/sbin/nft", "/veridict"}; !slices.Equal(programs, want) {
		t.Errorf("programs %v, want %v", programs, want)
	}
	read := func(path string) []byte {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		return text
	}
	if !x509.NewCertPool().AppendCertsFromPEM(read(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))) {
		t.Error("there are no certificate authorities")
	}
	if !bytes.HasPrefix(read(filepath.Join(root, "etc/passwd")), []byte("root:x:0:0:")) {
		t.Error("nobody is root")
	}
	inside := read(filepath.Join(root, "usr/share/sbom/veridict.spdx.json"))
	if !bytes.Equal(inside, read(filepath.Join(repository, "bin/veridict-image.spdx.json"))) {
		t.Error("the list in the image is not the one beside it")
	}
	for _, name := range []string{`"nftables"`, `"libc6"`, `"ca-certificates"`, `"github.com/cilium/ebpf"`} {
		if !bytes.Contains(inside, []byte(`"name": `+name)) {
			t.Errorf("%s is not listed", name)
		}
	}
}
