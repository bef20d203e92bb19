// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/control"
	"github.com/veridict/veridict/control/config"
	"github.com/veridict/veridict/control/health"
	"github.com/veridict/veridict/control/source"
	"github.com/veridict/veridict/dataplane/nftables"
)

const (
	// The checks' ports are below all that the kernel gives to clients in this
	// namespace: a client that asks where nobody listens yet would meet itself there
	// sooner or later, and its port stays taken for a minute.
	checkPort, otherCheckPort = 980, 981

	balancedService = `---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.98, externalTrafficPolicy: Local, healthCheckNodePort: %d, ports: [{port: 80}]}
`
	balancedSlice = `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.244.1.9], nodeName: %s}]
`
)

// TestHealthCheckNodePorts asks as a load balancer does, while the Service changes
// (B34).
func TestHealthCheckNodePorts(t *testing.T) {
	start(t)
	dir := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, ".next"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, ".next"), filepath.Join(dir, "shop.yaml")); err != nil {
			t.Fatal(err)
		}
	}
	write(fmt.Sprintf(balancedService+balancedSlice, checkPort, "this"))
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	proxy := health.NewProxy(time.Minute, nil)
	server := health.NewServer(health.Options{Healthy: proxy.Healthy, Logger: logger})
	controller := control.New(control.Options{
		Config: config.Config{NodeName: "this", MinSyncPeriod: time.Millisecond, SyncPeriod: time.Second,
			NodePorts: config.NodePorts{CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}},
		Source: source.NewDir(source.Options{Dir: dir, NodeName: "this", Logger: logger}),
		Syncer: newSyncer(t, quiet(nftables.MarkFree)), Logger: logger, Health: proxy, Checks: server,
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- controller.Run(ctx) }()
	go func() { ended <- server.Run(ctx) }()
	defer func() {
		cancel()
		for range cap(ended) {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
		}
	}()
	awaitHealth(t, checkPort, http.StatusOK)
	write(fmt.Sprintf(balancedService+balancedSlice, checkPort, "other"))
	awaitHealth(t, checkPort, http.StatusServiceUnavailable)
	write(fmt.Sprintf(balancedService+balancedSlice, otherCheckPort, "this"))
	awaitHealth(t, otherCheckPort, http.StatusOK)
	awaitHealth(t, checkPort, 0)
	write("")
	awaitHealth(t, otherCheckPort, 0)
}

// awaitHealth asks until the status is the wanted one; 0 is a refused connection.
func awaitHealth(t *testing.T, port, want int) {
	t.Helper()
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	var got int
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		var response *http.Response
		if response, err = client.Get(fmt.Sprintf("http://127.0.0.1:%d/", port)); err != nil {
			got = -1
			if errors.Is(err, unix.ECONNREFUSED) {
				got = 0
			}
		} else {
			var body struct {
				Service struct{ Namespace, Name string }
			}
			if err := json.NewDecoder(response.Body).Decode(&body); err != nil || body.Service.Namespace != "shop" || body.Service.Name != "web" {
				t.Fatalf("body of port %d: %+v, %v", port, body, err)
			}
			response.Body.Close()
			got = response.StatusCode
		}
		if got == want {
			return
		}
	}
	t.Fatalf("port %d: status %d, %v, want %d", port, got, err, want)
}
