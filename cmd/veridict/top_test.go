// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/veridict/veridict/control/observe"
)

func TestTopBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second := 0
		ask := func(context.Context) (*topSample, error) {
			if second += 2; second == 4 {
				return nil, errors.New("no agent listens on /run/veridict/veridict.sock")
			}
			return topSampleAt(second, sampleServices()...), nil
		}
		o := topOptions{delay: 2 * time.Second, iterations: 3}
		model := newTopModel(o.delay, "shop")
		model.take(topSampleAt(0, sampleServices()...), time.Now())
		begin := time.Now()
		var out bytes.Buffer
		if err := o.runBatch(t.Context(), &out, model, ask); err != nil {
			t.Fatal(err)
		}
		if took, want := time.Since(begin), 3*o.delay; took != want {
			t.Errorf("took %s, want %s", took, want)
		}
		checkWidth(t, out.String())
		// The clock is that of the place where the test runs.
		text := regexp.MustCompile(`\d\d:\d\d:\d\d`).ReplaceAllString(out.String(), "hh:mm:ss")
		compareGolden(t, "top/batch.txt", text)
	})
}

// Without a number of updates it goes on until it is told to end, which is no error.
func TestTopBatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		asked := 0
		ask := func(context.Context) (*topSample, error) {
			asked++
			return topSampleAt(asked), nil
		}
		o := topOptions{delay: time.Minute + time.Second}
		model := newTopModel(o.delay, "")
		if err := o.runBatch(ctx, new(bytes.Buffer), model, ask); err != nil {
			t.Fatal(err)
		}
		if asked != 59 {
			t.Errorf("%d updates in an hour, want 59", asked)
		}
	})
}

// growingAgent is one whose first Service gets 500 connections a second, and time goes by
// with each reading.
func growingAgent() *fakeAgent {
	f := wellAgent()
	f.advance = func(s *observe.Snapshot) {
		s.At = s.At.Add(2 * time.Second)
		s.Selections += 1000
		services := append([]*observe.Service(nil), s.Services...)
		cart := *services[1]
		cart.Drawn += 1000
		services[1] = &cart
		s.Services = services
	}
	return f
}

func TestTopIntoAPipe(t *testing.T) {
	path := growingAgent().serve(t)
	code, stdout, stderr := run(t.Context(), "top", "shop/cart", "-n", "2", "-d", "0.1", "--socket", path)
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d, stderr %q", code, stderr)
	}
	checkWidth(t, stdout)
	updates := strings.Split(stdout, "\n\n")
	if len(updates) != 2 {
		t.Fatalf("%d updates, want 2:\n%s", len(updates), stdout)
	}
	for _, update := range updates {
		for _, want := range []string{"selections 500/s  foreign 0/s", "\nshop/cart:http                    tcp            3      500  even"} {
			if !strings.Contains(update, want) {
				t.Errorf("does not contain %q:\n%s", want, update)
			}
		}
		if strings.Contains(update, "tools/") || strings.Contains(update, "\x1b") {
			t.Errorf("other Services, or commands for a terminal:\n%s", update)
		}
	}
}
