// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Program is a running program whose output goes to a file.
type Program struct {
	name, log string
	cmd       *exec.Cmd
	ended     chan struct{}
	err       error
	// Started is when it was.
	Started time.Time
}

// start runs a program until it is stopped. Its log is dir/name.log, continued if
// there is one.
func start(dir, name, path string, args ...string) (*Program, error) {
	p := &Program{name: name, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.cmd = exec.Command(path, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The kernel kills the child when the thread that made it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p.Started = time.Now()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
		log.Close()
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// PID returns the number of the process.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal and does not wait.
func (p *Program) Signal(signal syscall.Signal) error { return p.cmd.Process.Signal(signal) }

// Stop asks the program to end and waits for it, and returns how long that took. A
// program that has ended before, or does not within half a minute, is an error.
func (p *Program) Stop() (time.Duration, error) { return p.end(unix.SIGTERM) }

// Kill ends the program.
func (p *Program) Kill() { _, _ = p.end(unix.SIGKILL) }

const stopTimeout = 30 * time.Second

func (p *Program) end(signal syscall.Signal) (time.Duration, error) {
	select {
	case <-p.ended:
		return 0, fmt.Errorf("%s has ended before: %w; its log ends with:\n%s", p.name, p.err, p.Tail())
	default:
	}
	begin := time.Now()
	if err := p.Signal(signal); err != nil {
		return 0, fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		_ = p.Signal(unix.SIGKILL)
		<-p.ended
		return time.Since(begin), fmt.Errorf("stop %s: it took longer than %s", p.name, stopTimeout)
	}
	if signal == unix.SIGTERM && p.err != nil {
		return time.Since(begin), fmt.Errorf("stop %s: %w", p.name, p.err)
	}
	return time.Since(begin), nil
}

// Log returns what the program has written.
func (p *Program) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Tail returns the end of the log.
func (p *Program) Tail() string {
	lines := strings.Split(strings.TrimSpace(p.Log()), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

// await polls until check succeeds. It fails with check's last error when the program
// ends or the time is over.
func (p *Program) await(ctx context.Context, timeout time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-pause.C:
		case <-p.ended:
			return fmt.Errorf("%s has ended: %w; its log ends with:\n%s", p.name, errors.Join(p.err, err), p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %s: %w; its log ends with:\n%s", p.name, timeout, err, p.Tail())
		}
	}
}
