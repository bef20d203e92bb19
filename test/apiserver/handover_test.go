// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/veridict/veridict/test/apiserver/harness"
)

// longLived is an open HTTP connection to a VIP.
type longLived struct {
	conn     net.Conn
	reader   *bufio.Reader
	endpoint string
}

func (r *rig) open(vip netip.Addr) *longLived {
	r.t.Helper()
	var conn net.Conn
	r.must(r.node.Clients.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(vip, 80).String(), 2*time.Second)
		return err
	}))
	r.t.Cleanup(func() { conn.Close() })
	l := &longLived{conn: conn, reader: bufio.NewReader(conn)}
	endpoint, err := l.ask()
	r.must(err)
	l.endpoint = endpoint
	return l
}

// ask sends one more request and returns who answers.
func (l *longLived) ask() (string, error) {
	_ = l.conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprint(l.conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return "", err
	}
	length := 0
	for {
		line, err := l.reader.ReadString('\n')
		if err != nil {
			return "", err
		}
		if _, err := fmt.Sscanf(line, "Content-Length: %d", &length); err == nil {
			continue
		}
		if strings.TrimSpace(line) == "" {
			break
		}
	}
	body := make([]byte, length)
	for n := 0; n < length; {
		m, err := l.reader.Read(body[n:])
		if err != nil {
			return "", err
		}
		n += m
	}
	endpoint, _, _ := strings.Cut(string(body), " ")
	return endpoint, nil
}

// TestHandover has kube-proxy hand a node over to veridict and back. The old proxy's
// rules stay until the new one's are there, as both leave theirs behind.
func TestHandover(t *testing.T) {
	r := newRig(t)
	a, b := harness.Endpoint(1), harness.Endpoint(2)
	vip := r.service("web", a, b)
	proxy, err := r.plane.KubeProxy()
	r.must(err)
	t.Cleanup(proxy.Kill) // however the test ends
	r.answers(vip, a, b)
	var connections []*longLived
	for range 50 {
		connections = append(connections, r.open(vip))
	}
	same := func(when string) {
		t.Helper()
		for _, c := range connections {
			if endpoint, err := c.ask(); err != nil || endpoint != c.endpoint {
				t.Fatalf("%s: a connection to %s is answered by %q, %v", when, c.endpoint, endpoint, err)
			}
		}
	}
	stop := r.askForever(vip, a, b)

	// It has no handler for any signal.
	proxy.Kill()
	agent := r.veridict()
	agent.logs("msg=synced")
	r.cleanup("--kube-proxy")
	same("after kube-proxy's rules are gone")
	r.answers(vip, a, b)
	c := harness.Endpoint(3)
	if rules := r.nft("list", "tables"); strings.Contains(rules, "kube-proxy") || !strings.Contains(rules, "veridict") {
		t.Errorf("tables after the first handover:\n%s", rules)
	}
	// The new proxy is the one that follows.
	r.setEndpoints("web", a, b, c)
	r.answers(vip, a, b, c)
	r.setEndpoints("web", a, b)
	r.answers(vip, a, b)

	agent.stop()
	back, err := r.plane.KubeProxy()
	r.must(err)
	t.Cleanup(back.Kill)
	r.await(func() string {
		if !strings.Contains(r.nft("list", "tables"), "ip kube-proxy") || !strings.Contains(r.nft("list", "table", "ip", "kube-proxy"), vip.String()) {
			return "kube-proxy has not programmed the Service"
		}
		return ""
	})
	r.cleanup()
	same("after veridict's rules are gone")
	r.answers(vip, a, b)
	if failed := stop(); failed != "" {
		t.Error(failed)
	}
	if rules := r.nft("list", "tables"); strings.Contains(rules, "veridict") {
		t.Errorf("tables after the second handover:\n%s", rules)
	}
}

// cleanup runs veridict cleanup.
func (r *rig) cleanup(flags ...string) {
	r.t.Helper()
	out, err := exec.CommandContext(r.t.Context(), r.program(), append([]string{"cleanup"}, flags...)...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("veridict cleanup: %v: %s", err, out)
	}
}

// askForever opens one connection after another until the function that it returns is
// called, which says what has failed.
func (r *rig) askForever(vip netip.Addr, endpoints ...netip.Addr) func() string {
	end, ended := make(chan struct{}), make(chan string)
	own := map[netip.Addr]bool{harness.Endpoint(3): true}
	for _, endpoint := range endpoints {
		own[endpoint] = true
	}
	go func() {
		asked, failed, first := 0, 0, ""
		for {
			select {
			case <-end:
				if failed > 0 {
					ended <- fmt.Sprintf("%d of %d connections failed, the first: %s", failed, asked, first)
				}
				ended <- ""
				return
			default:
			}
			asked++
			answer, err := r.node.Ask(r.t.Context(), vip)
			if err == nil && !own[answer] {
				err = fmt.Errorf("answered by %s", answer)
			}
			if err != nil && failed == 0 {
				first = err.Error()
			}
			if err != nil {
				failed++
			}
		}
	}()
	return func() string {
		close(end)
		return <-ended
	}
}
