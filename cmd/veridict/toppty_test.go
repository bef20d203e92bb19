// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// terminal is a pseudo terminal with a program on it.
type terminal struct {
	t           *testing.T
	master, pts *os.File
	before      *unix.Termios
	program     *exec.Cmd

	mu sync.Mutex
	// written is all that the program has written, more is sent when there is more.
	written []byte
	more    chan struct{}
}

// startOnTerminal runs this program, in a process and a session of its own.
func startOnTerminal(t *testing.T, width, height int, args ...string) *terminal {
	t.Helper()
	term := &terminal{t: t, more: make(chan struct{}, 1)}
	term.open()
	term.resize(width, height)
	term.before = term.mode()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	term.program = exec.CommandContext(t.Context(), self, args...)
	// TestMain goes by it.
	term.program.Args[0] = "veridict"
	term.program.Stdin, term.program.Stdout, term.program.Stderr = term.pts, term.pts, term.pts
	term.program.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.program.Start(); err != nil {
		t.Fatal(err)
	}
	return term
}

// open makes the pseudo terminal, and reads what is written to it.
func (term *terminal) open() {
	term.t.Helper()
	var err error
	if term.master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		term.t.Fatal(err)
	}
	var number int
	onDescriptor(term.t, term.master, func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	})
	if term.pts, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		term.t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		chunk := make([]byte, 4096)
		for {
			n, err := term.master.Read(chunk)
			if err != nil {
				return
			}
			term.mu.Lock()
			term.written = append(term.written, chunk[:n]...)
			term.mu.Unlock()
			select {
			case term.more <- struct{}{}:
			default:
			}
		}
	}()
	term.t.Cleanup(func() {
		_ = term.pts.Close()
		_ = term.master.Close()
		<-read
	})
}

func onDescriptor(t *testing.T, file *os.File, f func(fd int) error) {
	t.Helper()
	if err := (&screen{tty: file}).control(f); err != nil {
		t.Fatal(err)
	}
}

func (term *terminal) mode() (mode *unix.Termios) {
	term.t.Helper()
	onDescriptor(term.t, term.pts, func(fd int) (err error) {
		mode, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	return mode
}

func (term *terminal) resize(width, height int) {
	term.t.Helper()
	onDescriptor(term.t, term.master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(width), Row: uint16(height)})
	})
}

func (term *terminal) press(keys string) {
	term.t.Helper()
	if _, err := term.master.WriteString(keys); err != nil {
		term.t.Fatal(err)
	}
}

func (term *terminal) output() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return string(term.written)
}

// shows waits until a screen has all texts.
func (term *terminal) shows(texts ...string) string {
	term.t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		lines := lastScreen(term.output())
		screen := strings.Join(lines, "\n")
		all := len(lines) > 0
		for _, text := range texts {
			all = all && strings.Contains(screen, text)
		}
		if all {
			return screen
		}
		select {
		case <-term.more:
		case <-timeout:
			term.t.Fatalf("does not show %q:\n%s", texts, screen)
		}
	}
}

// lastScreen returns the lines of the last screen that is drawn to its end.
func lastScreen(output string) []string {
	screens := strings.Split(output, "\x1b[1;1H")
	// The last one may be half of one.
	if len(screens) < 2 {
		return nil
	}
	last := screens[len(screens)-1]
	if !strings.Contains(last, "q quit") && !strings.Contains(last, "Esc clears") {
		if len(screens) < 3 {
			return nil
		}
		last = screens[len(screens)-2]
	}
	var lines []string
	for _, line := range regexp.MustCompile(`\x1b\[[0-9]+;1H`).Split(last, -1) {
		line = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`).ReplaceAllString(line, "")
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return lines
}

// ends waits until the program has ended well and checks that the terminal is as it was.
func (term *terminal) ends() {
	term.t.Helper()
	if err := term.program.Wait(); err != nil {
		term.t.Errorf("ended with %v:\n%s", err, term.output())
	}
	if diff := cmp.Diff(term.before, term.mode()); diff != "" {
		term.t.Errorf("the terminal's mode has changed (-before +after):\n%s", diff)
	}
	timeout := time.After(20 * time.Second)
	for !strings.HasSuffix(term.output(), leaveScreen) {
		select {
		case <-term.more:
		case <-timeout:
			term.t.Fatalf("the screen was not left at the end: %q", term.output())
		}
	}
	for _, once := range []string{enterScreen, leaveScreen} {
		if n := strings.Count(term.output(), once); n != 1 {
			term.t.Errorf("%q was written %d times, want once", once, n)
		}
	}
}

// However it ends, the terminal is as it was.
func TestTopOnATerminalEnds(t *testing.T) {
	path := wellAgent().serve(t)
	for _, tc := range []struct {
		name string
		args []string
		end  func(*terminal)
	}{
		{"q", nil, func(term *terminal) { term.press("q") }},
		{"Ctrl-C", nil, func(term *terminal) { term.press("\x03") }},
		{"Ctrl-C in the filter", nil, func(term *terminal) {
			term.press("/q")
			term.shows("filter: q_")
			term.press("\x03")
		}},
		{"SIGTERM", nil, func(term *terminal) { _ = term.program.Process.Signal(syscall.SIGTERM) }},
		{"SIGINT", nil, func(term *terminal) { _ = term.program.Process.Signal(syscall.SIGINT) }},
		{"after updates", []string{"-n", "2", "-d", "100ms"}, func(*terminal) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			term := startOnTerminal(t, 80, 24, append([]string{"top", "--socket", path}, tc.args...)...)
			screen := term.shows("veridict top  node-1", "shop/cart:http", "1-6 of 6")
			if mode := term.mode(); len(tc.args) == 0 && mode.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) != 0 {
				t.Errorf("the terminal is not raw:\n%s", screen)
			}
			tc.end(term)
			term.ends()
		})
	}
}

func TestTopOnATerminal(t *testing.T) {
	path := growingAgent().serve(t)
	term := startOnTerminal(t, 80, 12, "top", "--socket", path, "-d", "100ms")
	term.shows("selections 500/s", "shop/cart:http                    tcp            3      500  even", "1-6 of 6 by selections per second")
	term.press("u")
	term.shows("by evidence")
	term.press("n")
	term.shows("by name")
	term.press("/TOOLS/")
	term.shows("filter: TOOLS/_")
	term.press("\r")
	if screen := term.shows(`1-3 of 3 by name, with "TOOLS/"`); strings.Contains(screen, "shop/") {
		t.Errorf("the filter lets others through:\n%s", screen)
	}
	// An escape alone, which only time tells from the beginning of another key.
	term.press("\x1b")
	term.shows("1-6 of 6 by name")
	term.resize(80, 9)
	term.shows("1-3 of 6 by name")
	term.press("\x1b[B")
	term.shows("2-4 of 6 by name")
	term.press("\x1b[6~")
	term.shows("4-6 of 6 by name")
	term.resize(120, 30)
	term.shows("1-6 of 6 by name", "SELECTIONS")
	term.press("q")
	term.ends()
}

func TestTopFindsTheNextAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	stop := wellAgent().start(t, path)
	term := startOnTerminal(t, 80, 20, "top", "--socket", path, "-d", "100ms")
	term.shows("veridict top  node-1")
	stop()
	term.shows("no answer for 0s: no agent listens on", "shop/cart:http")
	next := wellAgent()
	next.agent.Node = "node-1-again"
	stop = next.start(t, path)
	if screen := term.shows("veridict top  node-1-again"); strings.Contains(screen, "no answer") {
		t.Errorf("it is still gone:\n%s", screen)
	}
	term.press("q")
	term.ends()
	stop()
}
