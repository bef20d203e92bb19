// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	root     = "../.."
	maxLines = 500
)

// header stands in each source file, behind the comment sign of its language. What
// runs in the kernel has the kernel's licence.
func header(file string) []string {
	licence := "Apache-2.0"
	if ext := filepath.Ext(file); ext == ".c" || ext == ".h" {
		licence = "GPL-2.0-only"
	}
	return []string{"SPDX-FileCopyrightText: The veridict authors", "SPDX-License-Identifier: " + licence}
}

var (
	generatedCode = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	makeTarget    = regexp.MustCompile(`(?m)^([a-z-]+):.*## `)
	makeCall      = regexp.MustCompile("(?:^|[`\\s])make ([a-z][a-z-]*)")
	markdownCode  = regexp.MustCompile("(?ms)^```.*?^```|^    .*?$|`[^`\n]+`")
	markdownLink  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// files returns the project's files, relative to its root, whose name has one
// of the suffixes. What was built and what belongs to git is left out.
func files(t *testing.T, suffixes ...string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && slices.Contains([]string{".git", ".cache", "bin", "testdata"}, name) {
			return fs.SkipDir
		}
		hasSuffix := func(suffix string) bool { return strings.HasSuffix(name, suffix) }
		if entry.Type().IsRegular() && slices.ContainsFunc(suffixes, hasSuffix) {
			relative, err := filepath.Rel(root, path)
			found = append(found, relative)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatalf("walk the repository: %v", err)
	}
	if len(found) == 0 {
		t.Fatalf("no file ends in any of %q: is %s the root of the repository?", suffixes, root)
	}
	return found
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// sources returns the files that people write, with their content.
func sources(t *testing.T) map[string][]byte {
	t.Helper()
	written := make(map[string][]byte)
	for _, file := range files(t, ".go", ".c", ".h", ".sh", "Makefile", "run") {
		if content := read(t, file); !generatedCode.Match(content) {
			written[file] = content
		}
	}
	return written
}

func TestEveryPackageHasDoc(t *testing.T) {
	documented := make(map[string]bool)
	for _, file := range files(t, ".go") {
		dir := filepath.Dir(file)
		documented[dir] = documented[dir] || filepath.Base(file) == "doc.go"
	}
	for _, dir := range slices.Sorted(maps.Keys(documented)) {
		if !documented[dir] {
			t.Errorf("%s has no doc.go: say there what the package is for and what it promises", dir)
		}
	}
}

func TestEverySourceHasLicenceHeader(t *testing.T) {
	for file, content := range sources(t) {
		// Programs for the kernel begin with what keeps the Go tool away from them.
		content = bytes.TrimPrefix(content, []byte("//go:build ignore\n\n"))
		head, _, _ := bytes.Cut(content, []byte("\n\n"))
		for _, line := range header(file) {
			if !bytes.Contains(head, []byte(line)) {
				t.Errorf("%s does not begin with the comment line %q", file, line)
			}
		}
	}
}

func TestNoSourceIsTooLong(t *testing.T) {
	for file, content := range sources(t) {
		if lines := bytes.Count(content, []byte("\n")); lines > maxLines {
			t.Errorf("%s has %d lines, more than %d: divide it by subject", file, lines, maxLines)
		}
	}
}

func TestDocumentsNameExistingMakeTargets(t *testing.T) {
	var targets []string
	for _, match := range makeTarget.FindAllSubmatch(read(t, "Makefile"), -1) {
		targets = append(targets, string(match[1]))
	}
	for _, document := range files(t, ".md") {
		for _, code := range markdownCode.FindAll(read(t, document), -1) {
			for _, match := range makeCall.FindAllSubmatch(code, -1) {
				if target := string(match[1]); !slices.Contains(targets, target) {
					t.Errorf("%s calls make %s, which the Makefile does not have: it has %q",
						document, target, targets)
				}
			}
		}
	}
}

func TestDocumentsLinkToExistingFiles(t *testing.T) {
	for _, document := range files(t, ".md") {
		for _, match := range markdownLink.FindAllSubmatch(read(t, document), -1) {
			target, _, _ := strings.Cut(string(match[1]), "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			path := filepath.Join(root, filepath.Dir(document), target)
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s links to %s: %v", document, target, err)
			}
		}
	}
}
