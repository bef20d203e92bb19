// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

var errZone = errors.New("an IPv6 zone is not allowed")

// ParseAddr parses an IP address as Kubernetes does: numbers of an IPv4 address
// may have leading zeros and are decimal all the same, and an IPv4-mapped IPv6
// address is that IPv4 address.
func ParseAddr(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		addr, err = netip.ParseAddr(trimZeros(s))
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	if addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q: %w", s, errZone)
	}
	return addr.Unmap(), nil
}

// ParsePrefix parses a CIDR as [ParseAddr] parses an address. Bits beyond the
// prefix are cleared.
func ParsePrefix(s string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		addr, bits, _ := strings.Cut(s, "/")
		if trimmed := strings.TrimLeft(bits, "0"); trimmed != bits {
			bits = cmp.Or(trimmed, "0")
		}
		prefix, err = netip.ParsePrefix(trimZeros(addr) + "/" + bits)
	}
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR", s)
	}
	addr, bits := prefix.Addr(), prefix.Bits()
	if addr.Is4In6() {
		if bits < 96 {
			return netip.Prefix{}, fmt.Errorf("%q is an IPv4-mapped CIDR shorter than 96 bits", s)
		}
		addr, bits = addr.Unmap(), bits-96
	}
	return netip.PrefixFrom(addr, bits).Masked(), nil
}

// trimZeros removes the leading zeros of the decimal numbers of a dotted IPv4
// address, which may stand at the end of an IPv6 one.
func trimZeros(s string) string {
	start := strings.LastIndexByte(s, ':') + 1
	dotted := s[start:]
	if !strings.Contains(dotted, ".") {
		return s
	}
	numbers := strings.Split(dotted, ".")
	for i, number := range numbers {
		if trimmed := strings.TrimLeft(number, "0"); trimmed != number {
			numbers[i] = trimmed
			if trimmed == "" {
				numbers[i] = "0"
			}
		}
	}
	return s[:start] + strings.Join(numbers, ".")
}
