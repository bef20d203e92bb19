// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// What terminals do since the VT100, and xterm for the alternate screen.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[2J"
	leaveScreen = "\x1b[m\x1b[?25h\x1b[?1049l"
	eraseLine   = "\x1b[K"
	styleNone   = "\x1b[m"
)

// screen is a terminal that shows lines in place of what was on it, and hands out keys
// as they are pressed.
type screen struct {
	tty   *os.File
	saved *term.State
}

// openScreen takes over the terminal that the process belongs to. It has to be closed.
func openScreen() (*screen, error) {
	// A file of our own can be waited for with a deadline and closed; those that
	// the process was given are shared with others.
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the terminal, which --batch does without: %w", err)
	}
	return newScreen(tty)
}

// newScreen takes over a terminal, also its file.
func newScreen(tty *os.File) (*screen, error) {
	s := &screen{tty: tty}
	err := s.control(func(fd int) (err error) {
		s.saved, err = term.MakeRaw(fd)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up the terminal: %w", err), tty.Close())
	}
	if _, err := tty.WriteString(enterScreen); err != nil {
		return nil, errors.Join(fmt.Errorf("write to the terminal: %w", err), s.close())
	}
	return s, nil
}

// control calls f with the terminal's descriptor.
func (s *screen) control(f func(fd int) error) error {
	raw, err := s.tty.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = f(int(fd)) })
	return errors.Join(err, failed)
}

// close leaves the terminal as it was, and ends keys.
func (s *screen) close() error {
	_, writing := s.tty.WriteString(leaveScreen)
	restoring := s.control(func(fd int) error { return term.Restore(fd, s.saved) })
	if err := errors.Join(writing, restoring, s.tty.Close()); err != nil {
		return fmt.Errorf("restore the terminal: %w", err)
	}
	return nil
}

// size is that of the screen in characters.
func (s *screen) size() (width, height int, err error) {
	err = s.control(func(fd int) (err error) {
		width, height, err = term.GetSize(fd)
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("size of the terminal: %w", err)
	}
	if width <= 0 || height <= 0 {
		// A serial line knows no size.
		return columns, 24, nil
	}
	return width, height, nil
}

// draw shows lines from the top on, which have to fit.
func (s *screen) draw(lines []topLine, width int) error {
	var out bytes.Buffer
	for i, line := range lines {
		fmt.Fprintf(&out, "\x1b[%d;1H", i+1)
		switch line.style {
		case styleStrong:
			out.WriteString("\x1b[1m")
		case styleInverse:
			out.WriteString("\x1b[7m")
		case stylePlain:
		}
		out.WriteString(line.text)
		out.WriteString(styleNone)
		// After the last column, this would take away its character.
		if utf8.RuneCountInString(line.text) < width {
			out.WriteString(eraseLine)
		}
	}
	if _, err := s.tty.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write to the terminal: %w", err)
	}
	return nil
}

// escapeTime is how long the rest of a key may take to come after an escape.
const escapeTime = 50 * time.Millisecond

// keys sends what is pressed until the screen is closed, done is closed, or the terminal
// is gone, which is an error.
func (s *screen) keys(to chan<- topKey, done <-chan struct{}) error {
	var input []byte
	chunk := make([]byte, 256)
	for {
		n, err := s.tty.Read(chunk)
		complete := errors.Is(err, os.ErrDeadlineExceeded)
		switch {
		case errors.Is(err, os.ErrClosed):
			return nil
		case err != nil && !complete:
			return fmt.Errorf("read from the terminal: %w", err)
		}
		var pressed []topKey
		pressed, input = decodeKeys(append(input, chunk[:n]...), complete)
		for _, key := range pressed {
			select {
			case to <- key:
			case <-done:
				return nil
			}
		}
		deadline := time.Time{}
		if len(input) > 0 {
			deadline = time.Now().Add(escapeTime)
		}
		// That the file is closed is for Read to say.
		if err := s.tty.SetReadDeadline(deadline); errors.Is(err, os.ErrNoDeadline) {
			return fmt.Errorf("wait for the terminal: %w", err)
		}
	}
}
