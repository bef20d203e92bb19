// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package convert turns Kubernetes objects into the compact values that the
// control plane keeps: a [Service], [Slice], [Node] or [ServiceCIDR] holds what
// a proxy needs and no pointer into the object that it was made from.
//
// All functions are pure. Objects may come straight from a file, so the
// defaults that an API server would have filled in are filled in here. What is
// wrong with an object is returned as [Problem] values, one for each field, and
// the rest of the object is used where that is safe: a bad endpoint address
// costs that endpoint, port 0 costs that port, an invalid cluster IP costs that
// family.
//
// Values are immutable once made and may be shared.
package convert
