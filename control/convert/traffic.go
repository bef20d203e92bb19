// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/veridict/veridict/dataplane"
)

// Annotations that go beyond what kube-proxy knows.
const (
	// AnnotationWeight on an EndpointSlice is the weight of all its endpoints, 1
	// to 100.
	AnnotationWeight = "veridict.dev/weight"
	// AnnotationZoneWeights on a Service is a list like "a=3,b=1": endpoints in a
	// zone get connections in that proportion. A zone that is not named counts 1.
	AnnotationZoneWeights = "veridict.dev/zone-weights"
	// AnnotationAlgorithm on a Service is "random" or "source-hash".
	AnnotationAlgorithm = "veridict.dev/algorithm"
)

// maxWeight is the largest weight.
const maxWeight = 100

// Traffic is what a Service asks for beyond a cluster IP whose connections go to
// any endpoint.
type Traffic struct {
	// ExternalIPs and LoadBalancerIPs are of both families, sorted, each once.
	ExternalIPs, LoadBalancerIPs []netip.Addr
	// SourceRanges are the clients that LoadBalancerIPs are open to, of both
	// families; see [Traffic.RangesOf].
	SourceRanges []netip.Prefix
	// InternalLocal and ExternalLocal say that the traffic policy is Local.
	InternalLocal, ExternalLocal bool
	// AffinitySeconds is 0 without session affinity.
	AffinitySeconds uint32
	Algorithm       dataplane.Algorithm
	// ZoneWeights are sorted by zone.
	ZoneWeights []ZoneWeight
	// HealthCheckPort is where load balancers ask for local endpoints, 0 if
	// nowhere.
	HealthCheckPort uint16
}

// ZoneWeight is the weight of the endpoints of one zone, 1 to 100.
type ZoneWeight struct {
	Zone   string
	Weight uint16
}

// isZero says that the Service asks for nothing beyond.
func (t *Traffic) isZero() bool { return t.equal(&Traffic{}) }

func (t *Traffic) equal(o *Traffic) bool {
	if t == nil || o == nil {
		return t == o
	}
	return slices.Equal(t.ExternalIPs, o.ExternalIPs) && slices.Equal(t.LoadBalancerIPs, o.LoadBalancerIPs) &&
		slices.Equal(t.SourceRanges, o.SourceRanges) && t.InternalLocal == o.InternalLocal &&
		t.ExternalLocal == o.ExternalLocal && t.AffinitySeconds == o.AffinitySeconds &&
		t.Algorithm == o.Algorithm && slices.Equal(t.ZoneWeights, o.ZoneWeights) && t.HealthCheckPort == o.HealthCheckPort
}

// RangesOf returns the clients of a family that the load balancer's addresses are
// open to, nil for all: without a range of the family there is no restriction, and
// a range that holds every address is none.
func (t *Traffic) RangesOf(family dataplane.Family) []netip.Prefix {
	var ranges []netip.Prefix
	for _, r := range t.SourceRanges {
		if dataplane.FamilyOf(r.Addr()) != family {
			continue
		}
		if r.Bits() == 0 {
			return nil
		}
		ranges = append(ranges, r)
	}
	return ranges
}

// OfFamily returns the addresses of one family.
func OfFamily(addrs []netip.Addr, family dataplane.Family) []netip.Addr {
	var list []netip.Addr
	for _, addr := range addrs {
		if dataplane.FamilyOf(addr) == family {
			list = append(list, addr)
		}
	}
	return list
}

// setTraffic fills in Traffic, and leaves it nil where there is nothing to say.
func (s *Service) setTraffic(in *v1.Service, p *problems) {
	spec := &in.Spec
	t := &Traffic{
		ExternalIPs:     parseAddrs(spec.ExternalIPs, "spec.externalIPs", p),
		InternalLocal:   isLocal(spec.InternalTrafficPolicy, "spec.internalTrafficPolicy", p),
		AffinitySeconds: affinity(spec, p),
	}
	balanced := spec.Type == v1.ServiceTypeLoadBalancer
	// The status outlives a change of the type until the load balancer is gone, and
	// its addresses lead here until then.
	t.LoadBalancerIPs = ingressIPs(in.Status.LoadBalancer.Ingress, p)
	if balanced || len(t.LoadBalancerIPs) > 0 {
		t.SourceRanges = sourceRanges(spec.LoadBalancerSourceRanges, p)
	}
	external := isLocal(&spec.ExternalTrafficPolicy, "spec.externalTrafficPolicy", p)
	if balanced || spec.Type == v1.ServiceTypeNodePort || len(spec.ExternalIPs) > 0 {
		t.ExternalLocal = external
	}
	if port := spec.HealthCheckNodePort; balanced && t.ExternalLocal && port != 0 {
		if port < 1 || port > 65535 {
			p.add("spec.healthCheckNodePort", "%d is not a port number (1 to 65535)", port)
		} else {
			t.HealthCheckPort = uint16(port)
		}
	}
	t.Algorithm = algorithm(in.Annotations, p)
	t.ZoneWeights = zoneWeights(in.Annotations, p)
	if !t.isZero() {
		s.Traffic = t
	}
}

func isLocal[P v1.ServiceInternalTrafficPolicy | v1.ServiceExternalTrafficPolicy](policy *P, field string, p *problems) bool {
	if policy == nil {
		return false
	}
	switch *policy {
	case "Local":
		return true
	case "", "Cluster":
	default:
		p.add(field, "%q is not Cluster or Local; Cluster is used", *policy)
	}
	return false
}

// affinity returns the seconds that a client stays with its endpoint.
func affinity(spec *v1.ServiceSpec, p *problems) uint32 {
	switch spec.SessionAffinity {
	case v1.ServiceAffinityClientIP:
	case v1.ServiceAffinityNone, "":
		return 0
	default:
		p.add("spec.sessionAffinity", "%q is not None or ClientIP; None is used", spec.SessionAffinity)
		return 0
	}
	seconds := v1.DefaultClientIPServiceAffinitySeconds
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	const maxSeconds = 86400
	if seconds < 1 || seconds > maxSeconds {
		p.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "%d is not between 1 and %d; %d is used",
			seconds, maxSeconds, v1.DefaultClientIPServiceAffinitySeconds)
		seconds = v1.DefaultClientIPServiceAffinitySeconds
	}
	return uint32(seconds)
}

// ingressIPs are the load balancer's addresses that traffic arrives with. Those of
// mode Proxy are somewhere else.
func ingressIPs(ingress []v1.LoadBalancerIngress, p *problems) []netip.Addr {
	var addrs []netip.Addr
	for i := range ingress {
		in := &ingress[i]
		if in.IP == "" || in.IPMode != nil && *in.IPMode != v1.LoadBalancerIPModeVIP {
			continue
		}
		addr, err := frontendAddr(in.IP)
		if err != nil {
			p.add(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), "%v", err)
			continue
		}
		addrs = append(addrs, addr)
	}
	return sortedOnce(addrs)
}

func parseAddrs(texts []string, field string, p *problems) []netip.Addr {
	var addrs []netip.Addr
	for i, text := range texts {
		addr, err := frontendAddr(text)
		if err != nil {
			p.add(fmt.Sprintf("%s[%d]", field, i), "%v", err)
			continue
		}
		addrs = append(addrs, addr)
	}
	return sortedOnce(addrs)
}

var errNoFrontend = errors.New("unspecified, loopback and multicast addresses cannot be served")

// frontendAddr parses an address that clients connect to.
func frontendAddr(text string) (netip.Addr, error) {
	addr, err := ParseAddr(strings.TrimSpace(text))
	if err != nil {
		return netip.Addr{}, err
	}
	if addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() {
		return netip.Addr{}, fmt.Errorf("%s: %w", addr, errNoFrontend)
	}
	return addr, nil
}

func sortedOnce(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

func sourceRanges(texts []string, p *problems) []netip.Prefix {
	trimmed := make([]string, len(texts))
	for i, text := range texts {
		trimmed[i] = strings.TrimSpace(text)
	}
	return sortedRanges(parsePrefixes(trimmed, "spec.loadBalancerSourceRanges", p))
}

func sortedRanges(ranges []netip.Prefix) []netip.Prefix {
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return slices.Compact(ranges)
}

func algorithm(annotations map[string]string, p *problems) dataplane.Algorithm {
	switch value := annotations[AnnotationAlgorithm]; value {
	case "", "random":
	case "source-hash":
		return dataplane.SourceHash
	default:
		p.add(annotationField(AnnotationAlgorithm), "%q is not random or source-hash; it is ignored", value)
	}
	return dataplane.Random
}

func annotationField(name string) string { return "metadata.annotations[" + name + "]" }

// zoneWeights takes all of the annotation or nothing: half of it would be a
// proportion that nobody has asked for.
func zoneWeights(annotations map[string]string, p *problems) []ZoneWeight {
	text, given := annotations[AnnotationZoneWeights]
	if !given {
		return nil
	}
	var weights []ZoneWeight
	for part := range strings.SplitSeq(text, ",") {
		zone, number, ok := strings.Cut(part, "=")
		zone = strings.TrimSpace(zone)
		weight, valid := parseWeight(number)
		if !ok || zone == "" || !valid {
			p.add(annotationField(AnnotationZoneWeights), "%q: %q is not zone=weight with a weight of 1 to %d; the annotation is ignored",
				text, part, maxWeight)
			return nil
		}
		weights = append(weights, ZoneWeight{intern(zone), weight})
	}
	slices.SortFunc(weights, func(a, b ZoneWeight) int { return cmp.Compare(a.Zone, b.Zone) })
	for i := 1; i < len(weights); i++ {
		if weights[i].Zone == weights[i-1].Zone {
			p.add(annotationField(AnnotationZoneWeights), "%q: zone %s stands there twice; the annotation is ignored", text, weights[i].Zone)
			return nil
		}
	}
	return weights
}

// parseWeight returns 0 for what is no weight.
func parseWeight(text string) (uint16, bool) {
	weight, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || weight < 1 || weight > maxWeight {
		return 0, false
	}
	return uint16(weight), true
}
