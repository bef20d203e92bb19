// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"embed"
	"io/fs"
)

//go:embed *.yaml
var shop embed.FS

// Shop returns the manifests as they were when the program was built.
func Shop() fs.FS { return shop }
