// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/veridict/veridict/control/api"
)

// topOptions are the flags of top.
type topOptions struct {
	socket     string
	delay      time.Duration
	iterations int
	batch      bool
}

const (
	defaultDelay = 2 * time.Second
	minDelay     = 100 * time.Millisecond
)

func newTopCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top [SERVICE]",
		Short: "Watch how often Services are selected, and how evenly",
		Long: `Watch how often Services are selected, and how evenly. Rates and first packets
are of the time since the update before; evidence is that of veridict services.

SERVICE is a part of the names of those to show. Keys:

  s u n      sort by selections per second, evidence against evenness, or name
  /          change the filter; Enter keeps it, Esc clears it
  arrows     scroll, also PgUp, PgDn, Home and End
  q          end, also Ctrl-C

Where the output is no terminal, or with --batch, updates are plain text; the
first comes after one delay, so that it has rates, too.`,
	}
	var o topOptions
	addSocketFlag(cmd, &o.socket)
	o.delay = defaultDelay
	cmd.Flags().VarP((*delayFlag)(&o.delay), "delay", "d", "`time` between updates, in seconds if it has no unit")
	cmd.Flags().IntVarP(&o.iterations, "iterations", "n", 0, "end after so many `updates`, 0 for never")
	cmd.Flags().BoolVarP(&o.batch, "batch", "b", false, "write plain text, also to a terminal")
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usagef("want at most one SERVICE, not %q", args)
		}
		return nil
	}
	cmd.ValidArgsFunction = completeServices(&o.socket)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.delay < minDelay {
			return usagef("--delay %s is less than %s", o.delay, minDelay)
		}
		if o.iterations < 0 {
			return usagef("--iterations %d is less than 0", o.iterations)
		}
		return o.run(cmd.Context(), cmd.OutOrStdout(), strings.Join(args, ""))
	}
	return cmd
}

// delayFlag is a time that may be written as other tops have it.
type delayFlag time.Duration

// String is part of pflag.Value.
func (d *delayFlag) String() string { return time.Duration(*d).String() }

// Type is part of pflag.Value.
func (d *delayFlag) Type() string { return "time" }

// Set is part of pflag.Value.
func (d *delayFlag) Set(text string) error {
	delay, err := time.ParseDuration(text)
	if err != nil {
		delay, err = time.ParseDuration(text + "s")
	}
	if err != nil {
		return errors.New("want seconds, or a time such as 500ms")
	}
	*d = delayFlag(delay)
	return nil
}

// run shows updates until it is told to end, which is no error.
func (o *topOptions) run(ctx context.Context, w io.Writer, filter string) error {
	client := api.NewClient(o.socket)
	defer client.Close()
	// Who names the wrong socket should not have to read it off a screen.
	first, err := askTop(ctx, client)
	if err != nil {
		return err
	}
	model := newTopModel(o.delay, filter)
	model.take(first, time.Now())
	ask := func(ctx context.Context) (*topSample, error) { return askTop(ctx, client) }
	if file, ok := w.(*os.File); o.batch || !ok || !term.IsTerminal(int(file.Fd())) {
		return o.runBatch(ctx, w, model, ask)
	}
	screen, err := openScreen()
	if err != nil {
		return err
	}
	return o.runScreen(ctx, screen, model, ask)
}

// asker asks the agent.
type asker func(context.Context) (*topSample, error)

func (o *topOptions) runBatch(ctx context.Context, w io.Writer, model *topModel, ask asker) error {
	ticker := time.NewTicker(o.delay)
	defer ticker.Stop()
	for n := 0; o.iterations == 0 || n < o.iterations; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		sample, err := ask(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			model.fail(err, time.Now())
		default:
			model.take(sample, time.Now())
		}
		out := bufio.NewWriter(w)
		if n > 0 {
			fmt.Fprintln(out)
		}
		for _, line := range model.lines() {
			fmt.Fprintln(out, strings.TrimRight(line.text, " "))
		}
		if err := out.Flush(); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
	}
	return nil
}

// answer is what came of a question.
type answer struct {
	sample *topSample
	err    error
}

// runScreen shows the model on a screen, and closes that.
func (o *topOptions) runScreen(ctx context.Context, s *screen, model *topModel, ask asker) error {
	ctx, cancel := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	keys, answers := make(chan topKey), make(chan answer)
	group.Go(func() error { return s.keys(keys, ctx.Done()) })
	group.Go(func() (err error) {
		// Whatever ends this ends the others, and a panic leaves no broken terminal.
		defer cancel()
		defer func() { err = errors.Join(err, s.close()) }()
		question := func() {
			group.Go(func() error {
				sample, err := ask(ctx)
				select {
				case answers <- answer{sample, err}:
				case <-ctx.Done():
				}
				return nil
			})
		}
		return o.watch(ctx, s, model, keys, answers, question)
	})
	return group.Wait()
}

// watch is the loop of events. Calls of question are answered one at a time.
func (o *topOptions) watch(ctx context.Context, s *screen, model *topModel, keys <-chan topKey, answers <-chan answer,
	question func(),
) error {
	resized := make(chan os.Signal, 1)
	// The first size is a change, too.
	resized <- syscall.SIGWINCH
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	ticker := time.NewTicker(o.delay)
	defer ticker.Stop()
	for asking, updates := false, 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
			width, height, err := s.size()
			if err != nil {
				return err
			}
			model.resize(width, height)
		case key := <-keys:
			model.press(key)
		case <-ticker.C:
			model.tick(time.Now())
			if !asking {
				asking = true
				question()
			}
		case a := <-answers:
			asking = false
			updates++
			if a.err != nil {
				model.fail(a.err, time.Now())
			} else {
				model.take(a.sample, time.Now())
			}
		}
		if model.quit {
			return nil
		}
		if err := s.draw(model.lines(), model.width); err != nil {
			return err
		}
		if o.iterations > 0 && updates >= o.iterations {
			return nil
		}
	}
}
