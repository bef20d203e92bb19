// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Client asks a running agent.
type Client struct {
	path string
	http http.Client
	// last says that the agent need not read its counters.
	last bool
}

// NewClient returns a client of the agent that listens on the path.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", path)
	}
	return &Client{path: path, http: http.Client{
		Transport: &http.Transport{DialContext: dial, IdleConnTimeout: time.Minute}, Timeout: 2 * requestTimeout,
	}}
}

// Close gives up connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Last returns a client whose calls answer from what the agent has read last: with the
// call before, for one. It shares connections with this one.
func (c *Client) Last() *Client {
	last := *c
	last.last = true
	return &last
}

// Status asks how the agent is. All calls have it read its counters first, but for those
// of [Client.Last].
func (c *Client) Status(ctx context.Context) (*Status, error) {
	return get[Status](ctx, c, "/v1/status", nil)
}

// Query says which Services are asked for.
type Query struct {
	// Namespace and Name choose; empty ones all.
	Namespace, Name string
	// Sort is [ByName], [BySelections] or [ByEvidence]; ByName if empty.
	Sort string
	// Limit is how many Items are wanted at most, all if 0.
	Limit int
}

// Services asks for Services, without their pools.
func (c *Client) Services(ctx context.Context, q Query) (*ServiceList, error) {
	values := url.Values{}
	for key, value := range map[string]string{"namespace": q.Namespace, "name": q.Name, "sort": q.Sort} {
		if value != "" {
			values.Set(key, value)
		}
	}
	if q.Limit > 0 {
		values.Set("limit", strconv.Itoa(q.Limit))
	}
	return get[ServiceList](ctx, c, "/v1/services", values)
}

// Service asks for all ports of a Service, with their pools.
func (c *Client) Service(ctx context.Context, namespace, name string) (*ServiceList, error) {
	return get[ServiceList](ctx, c, "/v1/services/"+url.PathEscape(namespace)+"/"+url.PathEscape(name), nil)
}

// Latency asks how long translations took.
func (c *Client) Latency(ctx context.Context) (*LatencyList, error) {
	return get[LatencyList](ctx, c, "/v1/latency", nil)
}

func get[T any](ctx context.Context, c *Client, path string, values url.Values) (*T, error) {
	if values == nil {
		values = url.Values{}
	}
	if !c.last {
		values.Set("fresh", "true")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://veridict"+path+"?"+values.Encode(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.explain(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read the answer of the agent at %s: %w", c.path, err)
	}
	if response.StatusCode != http.StatusOK {
		var failure Failure
		if json.Unmarshal(body, &failure) != nil || failure.Error == "" {
			failure.Error = "it answered " + response.Status
		}
		return nil, fmt.Errorf("ask the agent at %s: %s", c.path, failure.Error)
	}
	document := new(T)
	if err := json.Unmarshal(body, document); err != nil {
		return nil, fmt.Errorf("read the answer of the agent at %s, which may be of another version: %w", c.path, err)
	}
	return document, nil
}

// explain says what to do where nobody answers.
func (c *Client) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("no agent listens on %s: start veridict run, or name its socket with --socket", c.path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s belongs to another user: call again as root", c.path)
	}
	// The URL that http adds is no address that a user knows.
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	return fmt.Errorf("ask the agent at %s: %w", c.path, err)
}
