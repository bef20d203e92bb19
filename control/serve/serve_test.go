// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package serve_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/veridict/veridict/control/serve"
	"github.com/veridict/veridict/dataplane/runner/runnertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options(o serve.Options) serve.Options {
	o.Name, o.Address, o.Logger = "greetings", "127.0.0.1:10249", slog.New(slog.DiscardHandler)
	o.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	return o
}

// listening is a Listen that fails as often as it is told, and says where it listens.
type listening struct {
	failures int
	tries    int
	at       chan string
}

var errInUse = errors.New("address already in use")

func (l *listening) listen(ctx context.Context, network, _ string) (net.Listener, error) {
	l.tries++
	if l.tries <= l.failures {
		return nil, errInUse
	}
	listener, err := new(net.ListenConfig).Listen(ctx, network, "127.0.0.1:0")
	if err == nil {
		l.at <- listener.Addr().String()
	}
	return listener, err
}

// TestServe asks over a real connection.
func TestServe(t *testing.T) {
	t.Parallel()
	l := listening{at: make(chan string, 1)}
	o := options(serve.Options{Listen: l.listen})
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve.Run(ctx, o) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+<-l.at+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil || !strings.Contains(string(body), "hello") {
		t.Errorf("%v; answer:\n%s", err, body)
	}
	response.Body.Close()
	stop := errors.New("stop")
	cancel(stop)
	if err := <-ended; !errors.Is(err, stop) {
		t.Errorf("Run returned %v, want the cause", err)
	}
}

func TestAddressInUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := runnertest.NewClock()
		l := listening{failures: 10}
		o := options(serve.Options{Listen: l.listen, Clock: clock})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- serve.Run(ctx, o) }()
		synctest.Wait()
		clock.Advance(4 * time.Second)
		synctest.Wait()
		if l.tries != 1 {
			t.Errorf("%d tries within five seconds", l.tries)
		}
		clock.Advance(time.Second)
		synctest.Wait()
		if l.tries != 2 {
			t.Errorf("%d tries after five seconds", l.tries)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestAddressInUseHardFail(t *testing.T) {
	t.Parallel()
	l := listening{failures: 1}
	o := options(serve.Options{HardFail: true, Listen: l.listen})
	if err := serve.Run(t.Context(), o); !errors.Is(err, errInUse) || !strings.Contains(err.Error(), "127.0.0.1:10249") {
		t.Errorf("error %v, want one that names the address", err)
	}
}

func TestNoAddress(t *testing.T) {
	t.Parallel()
	l := listening{}
	o := options(serve.Options{Listen: l.listen})
	o.Address = ""
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := serve.Run(ctx, o); !errors.Is(err, context.Canceled) || l.tries != 0 {
		t.Errorf("Run returned %v, after %d tries to listen", err, l.tries)
	}
}
