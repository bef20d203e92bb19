// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/dataplane"
)

// Answer is what an endpoint said.
type Answer struct {
	// Endpoint is the address and port where the connection arrived.
	Endpoint netip.AddrPort
	// Client is the source that the endpoint saw; it is not the client's own
	// if the connection was masqueraded.
	Client netip.AddrPort
}

// Ask opens one connection to the VIP, or sends one datagram from a fresh
// source port, and returns the answer. It must be called inside the client's
// namespace. TCP connections are closed with a reset, so that their source
// ports are free at once. [Reason] puts errors in a few words.
func Ask(ctx context.Context, vip dataplane.VIP) (Answer, error) {
	return AskFrom(ctx, 0, vip)
}

// AskFrom does as Ask, from the given source port; the system chooses if it is 0.
// A datagram from the port of another is no new connection to conntrack.
func AskFrom(ctx context.Context, port uint16, vip dataplane.VIP) (Answer, error) {
	dialer := net.Dialer{KeepAlive: -1}
	var network string
	var exchange func(net.Conn) (Answer, error)
	switch vip.Protocol {
	case dataplane.TCP:
		network, exchange = "tcp", askHTTP
		dialer.LocalAddr = &net.TCPAddr{Port: int(port)}
	case dataplane.UDP:
		network, exchange = "udp", askUDP
		dialer.LocalAddr = &net.UDPAddr{Port: int(port)}
	default:
		return Answer{}, fmt.Errorf("ask %s: %w", vip, errors.ErrUnsupported)
	}
	conn, err := dialer.DialContext(ctx, network, netip.AddrPortFrom(vip.Addr, vip.Port).String())
	if err != nil {
		return Answer{}, fmt.Errorf("ask %s: %w", vip, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	answer, err := exchange(conn)
	if err != nil {
		return Answer{}, fmt.Errorf("ask %s: %w", vip, err)
	}
	return answer, nil
}

func askHTTP(conn net.Conn) (Answer, error) {
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		return Answer{}, err
	}
	const path = "/who"
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: endpoint\r\n\r\n"); err != nil {
		return Answer{}, err
	}
	response, err := http.ReadResponse(bufio.NewReaderSize(conn, 512), nil)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Answer{}, fmt.Errorf("answered %s", response.Status)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return Answer{}, err
	}
	return parseAnswer(body, path)
}

func askUDP(conn net.Conn) (Answer, error) {
	question := conn.LocalAddr().String()
	if _, err := io.WriteString(conn, question); err != nil {
		return Answer{}, err
	}
	buffer := make([]byte, 512)
	n, err := conn.Read(buffer)
	if err != nil {
		return Answer{}, err
	}
	return parseAnswer(buffer[:n], question)
}

// errGarbled is the error for an answer that no endpoint of ours gives.
var errGarbled = errors.New("garbled answer")

func parseAnswer(text []byte, question string) (Answer, error) {
	var endpoint, client, echoed string
	if _, err := fmt.Sscan(string(text), &endpoint, &client, &echoed); err != nil || echoed != question {
		return Answer{}, fmt.Errorf("%w: %q", errGarbled, text)
	}
	var answer Answer
	var err error
	if answer.Endpoint, err = netip.ParseAddrPort(endpoint); err != nil {
		return Answer{}, fmt.Errorf("%w: %w", errGarbled, err)
	}
	if answer.Client, err = netip.ParseAddrPort(client); err != nil {
		return Answer{}, fmt.Errorf("%w: %w", errGarbled, err)
	}
	return answer, nil
}

// Reason puts an error of [Ask] in a few words, the same for errors of the same
// kind, so that failures can be counted.
func Reason(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "cut off"
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		return "unreachable"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return "out of source ports"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.ETIMEDOUT):
		return "no answer in time"
	case errors.Is(err, errGarbled):
		return "garbled answer"
	default:
		return err.Error()
	}
}
