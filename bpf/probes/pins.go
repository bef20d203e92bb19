// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// linksDir is the directory of pinned links.
const linksDir = "links"

// Prepare makes the directories to pin in, and mounts the BPF file system at
// /sys/fs/bpf if path is there and it is missing. [Open] does so, too, where it may.
func Prepare(path string) error {
	if err := ensureBPFFS(path); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(path, linksDir), 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	return nil
}

// pinnedLinks returns the paths of all links, none without a directory.
func pinnedLinks(path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(filepath.Join(path, linksDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	paths := make([]string, len(entries))
	for i, entry := range entries {
		paths[i] = filepath.Join(path, linksDir, entry.Name())
	}
	return paths, nil
}

// removeLink detaches a pinned link. Without its name alone it would end a moment
// later, as those of tracing programs do, which cannot be detached. What is no link is
// removed even so.
func removeLink(path string) error {
	if l, err := link.LoadPinnedLink(path, nil); err == nil {
		err := l.Detach()
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, link.ErrNotSupported) {
			err = nil
		}
		if err := errors.Join(err, l.Close()); err != nil {
			return fmt.Errorf("detach pinned program: %w", err)
		}
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("unpin link: %w", err)
	}
	return nil
}

// removeMaps unpins all maps.
func removeMaps(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("list pinned maps: %w", err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		if err := os.Remove(filepath.Join(path, entry.Name())); err != nil {
			return fmt.Errorf("unpin map: %w", err)
		}
	}
	return nil
}

// Remove detaches all that is pinned at the path and removes the pins, maps
// included. There need not be any.
func Remove(path string) error {
	links, err := pinnedLinks(path)
	if err != nil {
		return err
	}
	for _, l := range links {
		if err := removeLink(l); err != nil {
			return err
		}
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := removeMaps(path); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Join(path, linksDir), path} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove pin directory: %w", err)
		}
	}
	return nil
}
