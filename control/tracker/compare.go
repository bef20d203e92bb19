// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package tracker

import (
	"cmp"
	"strings"

	"github.com/veridict/veridict/dataplane"
)

func compareKeys(a, b dataplane.ServicePortKey) int {
	return cmp.Or(
		strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
		strings.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Family, b.Family),
	)
}
