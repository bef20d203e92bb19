// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package tracker

import (
	"cmp"
	"slices"
	"strings"

	"github.com/veridict/veridict/dataplane"
)

func compareKeys(a, b dataplane.ServicePortKey) int {
	return cmp.Or(
		strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
		strings.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Family, b.Family),
	)
}

func equal(a, b *dataplane.ServicePort) bool {
	return a.Key == b.Key && a.ClusterIP == b.ClusterIP && a.Port == b.Port && slices.Equal(a.Endpoints, b.Endpoints)
}

func equalSettings(a, b dataplane.Settings) bool {
	return a.MasqueradeAll == b.MasqueradeAll && slices.Equal(a.ServiceCIDRs, b.ServiceCIDRs) &&
		a.LocalDetector.Interface == b.LocalDetector.Interface &&
		a.LocalDetector.InterfacePrefix == b.LocalDetector.InterfacePrefix &&
		slices.Equal(a.LocalDetector.CIDRs, b.LocalDetector.CIDRs)
}
