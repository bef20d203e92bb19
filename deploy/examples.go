// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"embed"
	"fmt"
	"io/fs"
)

//go:embed examples/*.yaml
var files embed.FS

// Examples returns the files of examples/ as they were when the program was
// built.
func Examples() fs.FS {
	examples, err := fs.Sub(files, "examples")
	if err != nil {
		panic(fmt.Sprintf("examples: %v", err)) // only if the constant path were invalid
	}
	return examples
}
