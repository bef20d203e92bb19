// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// stamp tells whether a file is still the one that was read.
type stamp struct {
	size           int64
	modified       time.Time
	changed        syscall.Timespec
	device, number uint64
	// racy marks a stamp that is not to be trusted.
	racy bool
}

var (
	errGone       = errors.New("the file is gone")
	errNotRegular = errors.New("not a regular file")
)

// stampOf follows symbolic links, which is how a mounted ConfigMap changes. A
// link to nothing is an error, but not errGone: it may be in mid-change.
func stampOf(path string) (stamp, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, linkErr := os.Lstat(path); errors.Is(linkErr, fs.ErrNotExist) {
			return stamp{}, errGone
		}
	}
	if err != nil {
		return stamp{}, err
	}
	if !info.Mode().IsRegular() {
		return stamp{}, errNotRegular
	}
	return newStamp(info), nil
}

func newStamp(info fs.FileInfo) stamp {
	s := stamp{size: info.Size(), modified: info.ModTime()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.changed, s.device, s.number = sys.Ctim, uint64(sys.Dev), sys.Ino
	}
	return s
}
