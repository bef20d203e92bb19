// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// debianPackage is one that was fetched.
type debianPackage struct {
	Name, Version, Arch string
	// files are the paths in it, absolute.
	files []string
}

// fetch downloads a package and all that it depends on, and unpacks them below
// work/root.
func fetch(ctx context.Context, work, name string) ([]debianPackage, error) {
	root := filepath.Join(work, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	// apt-get drops its privileges to a user who must be able to write here.
	if err := os.Chmod(work, 0o777); err != nil {
		return nil, err
	}
	var packages []debianPackage
	seen, queue := map[string]bool{}, []string{name}
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		p, depends, err := fetchOne(ctx, work, root, name)
		if err != nil {
			return nil, fmt.Errorf("package %s: %w", name, err)
		}
		packages = append(packages, p)
		queue = append(queue, depends...)
	}
	slices.SortFunc(packages, func(a, b debianPackage) int { return strings.Compare(a.Name, b.Name) })
	return packages, nil
}

func fetchOne(ctx context.Context, work, root, name string) (debianPackage, []string, error) {
	before, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil {
		return debianPackage{}, nil, err
	}
	if err := download(ctx, work, name); err != nil {
		return debianPackage{}, nil, err
	}
	after, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil {
		return debianPackage{}, nil, err
	}
	after = slices.DeleteFunc(after, func(f string) bool { return slices.Contains(before, f) })
	if len(after) != 1 {
		return debianPackage{}, nil, fmt.Errorf("apt-get has made %d files, want 1", len(after))
	}
	fields, err := command(ctx, work, "dpkg-deb", "--show", "--showformat=${Package}\n${Version}\n${Architecture}\n${Depends}\n", after[0])
	if err != nil {
		return debianPackage{}, nil, err
	}
	lines := strings.Split(fields, "\n")
	if len(lines) < 4 {
		return debianPackage{}, nil, fmt.Errorf("dpkg-deb: %q", fields)
	}
	p := debianPackage{Name: lines[0], Version: lines[1], Arch: lines[2]}
	if _, err := command(ctx, work, "dpkg-deb", "--extract", after[0], root); err != nil {
		return debianPackage{}, nil, err
	}
	contents, err := command(ctx, work, "dpkg-deb", "--contents", after[0])
	if err != nil {
		return debianPackage{}, nil, err
	}
	for line := range strings.Lines(contents) {
		// The sixth field on is the path, and for a link where it leads.
		if fields := strings.Fields(line); len(fields) >= 6 {
			p.files = append(p.files, path.Clean("/"+fields[5]))
		}
	}
	return p, dependencies(lines[3]), nil
}

// download also refreshes apt's lists, which may be missing or name what is not there
// any more.
func download(ctx context.Context, work, name string) error {
	_, err := command(ctx, work, "apt-get", "download", "-qq", name)
	if err == nil {
		return nil
	}
	if _, updateErr := command(ctx, work, "apt-get", "update", "-qq"); updateErr != nil {
		return errors.Join(err, updateErr)
	}
	_, err = command(ctx, work, "apt-get", "download", "-qq", name)
	return err
}

// dependencies returns the names of a Depends field; of alternatives the first.
func dependencies(field string) []string {
	var names []string
	for part := range strings.SplitSeq(field, ",") {
		first, _, _ := strings.Cut(part, "|")
		name, _, _ := strings.Cut(strings.TrimSpace(first), " ")
		name, _, _ = strings.Cut(name, ":")
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%s is needed: the image is made on Debian or Ubuntu", name)
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// entry is a file of the image.
type entry struct {
	// name is absolute; link is what a symbolic link contains, source where content is.
	name, link, source string
	mode               fs.FileMode
}

// closure returns the program, the libraries that it needs, the loader and the
// licences, and the packages that they are from.
func closure(root, program string, packages []debianPackage) ([]entry, []debianPackage, error) {
	needed, err := libraries(root, program)
	if err != nil {
		return nil, nil, err
	}
	var tree []entry
	var used []debianPackage
	for _, p := range packages {
		n := len(tree)
		for _, name := range p.files {
			if !needed[name] {
				continue
			}
			made, err := entries(root, name)
			if err != nil {
				return nil, nil, err
			}
			tree = append(tree, made...)
			delete(needed, name)
		}
		if len(tree) == n {
			continue
		}
		used = append(used, p)
		copyright, err := entries(root, "/usr/share/doc/"+p.Name+"/copyright")
		if err != nil {
			return nil, nil, err
		}
		tree = append(tree, copyright...)
	}
	if len(needed) > 0 {
		return nil, nil, fmt.Errorf("no package has %v", needed)
	}
	slices.SortFunc(tree, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(tree, func(a, b entry) bool { return a.name == b.name }), used, nil
}

// entries returns a file, and what a symbolic link leads to.
func entries(root, name string) ([]entry, error) {
	source := filepath.Join(root, name)
	info, err := os.Lstat(source)
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		return []entry{{name: name, source: source, mode: info.Mode().Perm()}}, nil
	}
	link, err := os.Readlink(source)
	if err != nil {
		return nil, err
	}
	target := link
	if !path.IsAbs(target) {
		target = path.Join(path.Dir(name), link)
	}
	more, err := entries(root, target)
	return append([]entry{{name: name, link: link, mode: 0o777}}, more...), err
}

// libraries returns the paths of a program and of all that the loader loads for it.
func libraries(root, program string) (map[string]bool, error) {
	found, queue := map[string]bool{}, []string{program}
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		if found[name] {
			continue
		}
		found[name] = true
		needed, err := neededBy(root, name)
		if err != nil {
			return nil, err
		}
		queue = append(queue, needed...)
	}
	return found, nil
}

func neededBy(root, name string) ([]string, error) {
	file, err := elf.Open(filepath.Join(root, name))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	defer file.Close()
	names, err := file.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	var needed []string
	for _, library := range names {
		at, err := find(root, library)
		if err != nil {
			return nil, fmt.Errorf("%s needs %w", name, err)
		}
		needed = append(needed, at)
	}
	if interpreter := file.Section(".interp"); interpreter != nil {
		data, err := interpreter.Data()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		needed = append(needed, string(bytes.TrimRight(data, "\x00")))
	}
	return needed, nil
}

// find looks where Debian's loader does.
func find(root, library string) (string, error) {
	for _, pattern := range []string{"/lib/*-linux-gnu*/", "/usr/lib/*-linux-gnu*/", "/lib/", "/usr/lib/", "/lib64/"} {
		found, err := filepath.Glob(filepath.Join(root, pattern, library))
		if err != nil {
			return "", err
		}
		if len(found) > 0 {
			return strings.TrimPrefix(found[0], root), nil
		}
	}
	return "", fmt.Errorf("%s, which no package has", library)
}

// checkStatic fails for a program that would need libraries in the image.
func checkStatic(program string) error {
	file, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("read %s: %w", program, err)
	}
	defer file.Close()
	libraries, err := file.ImportedLibraries()
	if err == nil && len(libraries) > 0 || file.Section(".interp") != nil {
		return fmt.Errorf("%s: %w", program, errNotStatic)
	}
	return nil
}
