// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/deploy"
)

// TestLoadShop counts the endpoints that each frontend of the examples has:
// named ports, slices that share an endpoint and pods that are not ready are
// among them.
func TestLoadShop(t *testing.T) {
	shop, err := loadShop(deploy.Examples())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, port := range shop.servicePorts {
		got = append(got, fmt.Sprintf("%s %s %d", port.title(), port.vip, len(port.endpoints)))
	}
	slices.Sort(got)
	want := []string{
		"shop/cart:http 10.96.0.12:80/tcp 2",
		"shop/catalog:http 10.96.0.11:80/tcp 5",
		"shop/checkout:http 10.96.0.13:80/tcp 4",
		"shop/checkout:http [fd00:10:96::13]:80/tcp 4",
		"shop/inventory:http 10.96.0.16:80/tcp 1",
		"shop/names:tcp 10.96.0.53:53/tcp 3",
		"shop/names:udp 10.96.0.53:53/udp 3",
		"shop/payments:api 10.96.0.14:443/tcp 6",
		"shop/recommendations:http 10.96.0.17:80/tcp 5",
		"shop/returns:http 10.96.0.20:80/tcp 0",
		"shop/reviews:http 10.96.0.18:80/tcp 2",
		"shop/search:http 10.96.0.15:9200/tcp 8",
		"shop/sessions:store [fd00:10:96::19]:6379/tcp 3",
		"shop/storefront:admin 10.96.0.10:9090/tcp 3",
		"shop/storefront:http 10.96.0.10:80/tcp 3",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ServicePorts (-want +got):\n%s", diff)
	}
	// One pod is dual stack, another listens on two ports, a third is not ready.
	for pod, want := range map[string]int{"checkout-1": 2, "storefront-1": 2, "reviews-3": 1} {
		if got := len(shop.pods[pod]); got != want {
			t.Errorf("pod %s has %d listeners, want %d", pod, got, want)
		}
	}
}

func TestLoadShopRefuses(t *testing.T) {
	const service = "kind: Service\nmetadata: {name: s, namespace: n}\nspec:\n  clusterIPs: [%s]\n  ports: [{name: p, port: 1, protocol: %s}]\n"
	for _, tc := range []struct{ name, content, want string }{
		{"broken YAML", "kind: [", "read manifests: a.yaml: error converting YAML to JSON"},
		{"an invalid address", fmt.Sprintf(service, "10.0.0.256", "TCP"), "service s: ParseAddr"},
		{"SCTP", fmt.Sprintf(service, "10.0.0.1", "SCTP"), `service s: the demo has no endpoints for protocol "SCTP"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := loadShop(fstest.MapFS{"a.yaml": {Data: []byte(tc.content)}})
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
		})
	}
}
