#!/usr/bin/env bash
# SPDX-FileCopyrightText: The veridict authors
# SPDX-License-Identifier: Apache-2.0
#
# Rewrites what is made by a program: the output of go generate, and the golden
# files of every package whose tests have an -update flag. Only the tests that
# write them run, those named Test…Golden.

set -euo pipefail
cd "$(dirname "$0")/.."

# What bpf2go compiles with. Another compiler makes other bytes, hence the version.
export BPF2GO_CC=${CLANG:-clang-14} BPF2GO_STRIP=${LLVM_STRIP:-llvm-strip-14}
machine=$(uname -m)
export BPF2GO_CFLAGS="-O2 -g -Wall -Werror -idirafter /usr/include/$machine-linux-gnu"

go generate ./...

mapfile -t files < <(grep -rlE 'flag\.Bool\("update"' --include='*_test.go' . || true)
for directory in $(printf '%s\n' "${files[@]}" | xargs -r -n 1 dirname | sort -u); do
  go test -count=1 -run 'Golden$' "$directory" -update
done
