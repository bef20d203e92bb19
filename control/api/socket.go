// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DefaultPath is where the agent listens if nothing else is said.
const DefaultPath = "/run/veridict/veridict.sock"

// listen makes the socket. It gets its name when only the owner may open it.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the socket: %w", err)
	}
	if err := free(ctx, path); err != nil {
		return nil, err
	}
	directory, err := os.MkdirTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return nil, fmt.Errorf("make a directory beside the socket: %w", err)
	}
	defer func() { _ = os.RemoveAll(directory) }()
	hidden := filepath.Join(directory, "s")
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", hidden)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	err = os.Chmod(hidden, 0o600)
	if err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up %s: %w", path, err), listener.Close())
	}
	return &socket{Listener: listener, path: path}, nil
}

// free returns an error if a living process has the path.
func free(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at the socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is no socket: name another with --socket", path)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find out who listens on %s: %w", path, err)
	}
	defer func() { _ = conn.Close() }()
	return fmt.Errorf("another process listens on %s: name another socket with --socket", path)
}

// socket removes its path when it is closed.
type socket struct {
	net.Listener
	path string
}

// Close is part of net.Listener.
func (s *socket) Close() error { return errors.Join(os.Remove(s.path), s.Listener.Close()) }
