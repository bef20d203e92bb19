// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Command image makes veridict's OCI image without a container engine: the static
// binary, nft with the libraries that it needs and the certificate authorities, both
// out of the packages of the Debian that it runs on. There is no shell in it. "make
// image" runs it.
//
// The same binary and packages give the same bytes: entries are sorted, times are
// SOURCE_DATE_EPOCH (0 if it is not set), owners are root. What is in it is listed as
// SPDX 2.3 beside the archive and in the image.
package main
