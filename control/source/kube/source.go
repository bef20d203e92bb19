// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/veridict/veridict/control/source"
	"github.com/veridict/veridict/dataplane/runner"
)

// Options say what a [Source] reads.
type Options struct {
	Client Client
	// NodeName is this node's.
	NodeName string
	Logger   *slog.Logger
	// Clock is the system's clock if nil.
	Clock runner.Clock
}

// Source is an API server. It is used for one Run or one Load.
type Source struct {
	o     Options
	all   *collection
	ended sync.WaitGroup
	// failed receives what keeps a required resource from being read.
	failed chan error
}

// patience is after how long the log says what start-up waits for.
const patience = 10 * time.Second

// New returns a source that has asked for nothing yet.
func New(o Options) *Source {
	if o.Clock == nil {
		o.Clock = runner.RealClock{}
	}
	return &Source{o: o, all: newCollection(o.NodeName), failed: make(chan error, 1)}
}

// Load hands over all objects in one batch. It fails where they cannot be read now.
func (s *Source) Load(ctx context.Context, handle source.Handler) error {
	ctx, cancel := context.WithCancel(ctx)
	defer s.ended.Wait()
	defer cancel()
	s.start(ctx)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-s.failed:
			return fmt.Errorf("read objects from the API server: %w", err)
		case <-s.all.woken:
		}
		if batch, any := s.all.take(); any && batch.Synced {
			handle(batch)
			return nil
		}
	}
}

// Run hands over all objects and then what changes, until ctx is done. The error is
// the cause of ctx.
func (s *Source) Run(ctx context.Context, handle source.Handler) error {
	ctx, cancel := context.WithCancel(ctx)
	defer s.ended.Wait()
	defer cancel()
	s.start(ctx)
	timer := s.o.Clock.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C():
			s.logWaiting()
		case <-s.all.woken:
		}
		if batch, any := s.all.take(); any {
			handle(batch)
		}
	}
}

func (s *Source) logWaiting() {
	var names []string
	for _, kind := range s.all.notListed() {
		names = append(names, kind.String())
	}
	if len(names) > 0 {
		s.o.Logger.Warn("still waiting for the API server, nothing is programmed before", "kinds", strings.Join(names, ", "), "waited", patience)
	}
}

// start has a reflector follow each resource until ctx is done. They retry with
// client-go's backoff of 0.8 to 30 s and log nothing: noted does.
func (s *Source) start(ctx context.Context) {
	quiet := logr.Discard()
	for _, r := range resources(s.o.Client, s.o.NodeName) {
		f := &feed{resource: r, noted: s.noted}
		reflector := cache.NewReflectorWithOptions(
			cache.ToListWatcherWithWatchListSemantics(f.listWatch(), s.o.Client), &item{}, &store{kind: r.kind, all: s.all},
			cache.ReflectorOptions{Name: r.plural, TypeDescription: r.plural, Logger: &quiet},
		)
		s.ended.Go(func() { reflector.RunWithContext(klog.NewContext(ctx, quiet)) })
	}
}

// noted logs what is news: one cause once, though it concerns several resources.
func (s *Source) noted(of *resource, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	news, over := s.all.setOutage(of, err)
	if over {
		s.o.Logger.Info("the API server answers again")
	}
	if news != "" {
		s.o.Logger.Warn("objects cannot be read, those read before stay", "why", news)
	}
	if err == nil {
		return
	}
	if of.optional && apierrors.IsForbidden(err) {
		s.all.excuse(of.kind)
		return
	}
	select {
	case s.failed <- errors.New(describe(of, err)):
	default:
	}
}
