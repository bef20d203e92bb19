// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

const (
	certificatesPackage = "ca-certificates"
	certificatesFile    = "/etc/ssl/certs/ca-certificates.crt"
)

// users are those that every Debian system has; veridict runs as the first.
const (
	passwd = "root:x:0:0:root:/:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
	group  = "root:x:0:\nnogroup:x:65534:\n"
)

// certificates returns the file of all certificate authorities, for kubeconfigs that
// name none, and the package that it is of. Debian makes the file when it installs the
// package, by programs that the image does not need otherwise.
func certificates(ctx context.Context, work string) ([]entry, debianPackage, error) {
	root := filepath.Join(work, certificatesPackage)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, debianPackage{}, err
	}
	p, _, err := fetchOne(ctx, work, root, certificatesPackage)
	if err != nil {
		return nil, debianPackage{}, fmt.Errorf("package %s: %w", certificatesPackage, err)
	}
	bundle, err := joinCertificates(filepath.Join(root, "usr/share/ca-certificates/mozilla"))
	if err != nil {
		return nil, debianPackage{}, fmt.Errorf("package %s: %w", certificatesPackage, err)
	}
	licence, err := entries(root, "/usr/share/doc/"+certificatesPackage+"/copyright")
	if err != nil {
		return nil, debianPackage{}, err
	}
	made, err := generated(work, certificatesFile, bundle)
	return append(licence, made), p, err
}

// joinCertificates puts all certificates of a directory into one file.
func joinCertificates(dir string) ([]byte, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.crt"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, errors.New("it has no certificates")
	}
	slices.Sort(files)
	var bundle bytes.Buffer
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		bundle.Write(bytes.TrimRight(text, "\n"))
		bundle.WriteByte('\n')
	}
	return bundle.Bytes(), nil
}

// userFiles name the users, for programs that look them up.
func userFiles(work string) ([]entry, error) {
	users, err := generated(work, "/etc/passwd", []byte(passwd))
	if err != nil {
		return nil, err
	}
	groups, err := generated(work, "/etc/group", []byte(group))
	return []entry{users, groups}, err
}

// generated writes a file of the image that is in no package.
func generated(work, name string, content []byte) (entry, error) {
	source := filepath.Join(work, "generated", name)
	if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
		return entry{}, err
	}
	return entry{name: name, source: source, mode: 0o644}, os.WriteFile(source, content, 0o644)
}
