#!/usr/bin/env bash
# SPDX-FileCopyrightText: The veridict authors
# SPDX-License-Identifier: Apache-2.0
#
# Checks what a commit has to keep: formatting, tidy modules, go vet, generated
# and golden files as their programs write them. It changes nothing in the
# working tree, so it can be called with uncommitted work around. All checks
# run, also after one has failed.

set -euo pipefail
cd "$(dirname "$0")/.."

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

check_formatting() {
  local files
  files=$(find . -path ./.cache -prune -o -name '*.go' -print0 | xargs --null gofmt -s -l) || return 1
  [ -z "$files" ] || {
    printf 'not formatted (make format mends it):\n%s\n' "$files"
    return 1
  }
}

check_modules() { go mod tidy -diff && go mod verify && go -C test/apiserver mod tidy -diff; }

check_vet() { go vet ./... && go vet -C test/apiserver ./...; }

# The programs run in a copy; what they change there is out of date here.
check_generated() {
  tar --create --exclude=./.git --exclude=./bin --exclude=./.cache . |
    tar --extract --directory="$copy" || return 1
  "$copy/test/generate.sh" || return 1
  diff --recursive --unified --exclude=.git --exclude=bin --exclude=.cache . "$copy" || {
    echo 'generated files are out of date: make generate rewrites them'
    return 1
  }
}

# A function called in a condition runs on after an error, hence the returns.
failed=0
for name in formatting modules vet generated; do
  if output=$("check_$name" 2>&1); then
    echo "check $name: ok"
  else
    printf '%s\ncheck %s: FAILED\n' "$output" "$name"
    failed=$((failed + 1))
  fi
done
printf 'check: %d passed, %d failed\n' $((4 - failed)) "$failed"
[ "$failed" -eq 0 ]
