// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"strings"

	"github.com/veridict/veridict/dataplane"
)

// field is one part of a key or value. In the kernel each takes four bytes, an
// IPv6 address sixteen.
type field uint8

const (
	addrField field = iota
	protocolField
	portField
	// wordField is a bucket, mark or id, in the machine's byte order because the
	// kernel computes with it.
	wordField
)

// length returns the length of the field in the kernel, with padding.
func (f field) length(fam family) uint32 {
	if f == addrField {
		return uint32(fam.addrLen)
	}
	return 4
}

// keyFields returns what the keys of a set consist of.
func keyFields(set string) []field {
	switch set {
	case clusterIPs, nodePortIPs, learnedNodePortIPs:
		return []field{addrField}
	case hairpinConnections:
		return []field{addrField, addrField, protocolField, portField}
	case endpointsMap:
		return []field{addrField, protocolField, portField, wordField}
	case nodePortEndpointsMap:
		return []field{protocolField, portField, wordField}
	}
	switch {
	case strings.HasPrefix(set, sourceRanges):
		return []field{addrField, portField, addrField}
	case strings.HasSuffix(set, "-nodeports"):
		return []field{protocolField, portField}
	case strings.HasPrefix(set, nodePortEndpointsMap):
		return []field{portField, wordField}
	case strings.HasPrefix(set, endpointsMap):
		return []field{addrField, portField, wordField}
	case strings.HasPrefix(set, affinityIDPrefix):
		return []field{addrField, wordField}
	case holdsPins(set):
		return []field{addrField, addrField, portField}
	default:
		return []field{addrField, protocolField, portField}
	}
}

// endpointFields are what the values of data maps consist of.
func endpointFields() []field { return []field{addrField, portField} }

// holdsPins says whether packets write their endpoints to the map.
func holdsPins(set string) bool {
	for _, p := range dataplane.Protocols() {
		if set == affinityMap(p) || set == affinityIDMap(p) {
			return true
		}
	}
	return false
}

func lengthOf(fields []field, f family) uint32 {
	var sum uint32
	for _, part := range fields {
		sum += part.length(f)
	}
	return sum
}
