#!/usr/bin/env bash
# SPDX-FileCopyrightText: The veridict authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs test stages one after the other and says at the end what ran. A stage
# that fails does not keep the next ones from running; the exit status is 1 if
# any failed.
#
# usage: [VMKERNEL=6.1|6.12] test/run.sh STAGE...
#   with stages unit, root, flows, allflows, apiserver and vm

set -euo pipefail
cd "$(dirname "$0")/.."

# The packages whose tests need root; they make network namespaces of their
# own. The tests of all other packages need no privilege.
root_packages=(./compare/demo/... ./compare/testbed/... ./test/agent/... ./test/image/... ./test/kernel/...)
flowcheck=../shared/flowcheck

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# packages PATTERN... prints what the patterns match, also packages that do not
# build: go test reports those.
packages() { go list -e "$@" | sort; }

need_root() {
  [ "$(id -u)" -eq 0 ] || {
    echo "$1 needs root: it makes network namespaces" >&2
    return 1
  }
}

# report STAGE COMMAND... runs go test -json and prints its events as text.
report() {
  local stage=$1
  shift
  "$@" | "$results/report" -summary "$results/$stage"
}

stage_unit() {
  local chosen
  mapfile -t chosen < <(comm -23 <(packages ./...) <(packages "${root_packages[@]}"))
  report unit go test -json -race "${chosen[@]}"
}

# The packages share the machine's conntrack and commit locks, so one at a time.
stage_root() {
  need_root 'the root stage'
  # Where the tests run nothing can be downloaded.
  make image
  local chosen
  mapfile -t chosen < <(packages "${root_packages[@]}")
  report root go test -json -count=1 -p 1 "${chosen[@]}"
}

stage_flows() {
  if [ ! -d "$flowcheck" ]; then
    echo "not run: there is no $flowcheck" | tee "$results/$stage"
    return 0
  fi
  need_root 'the flows stage'
  make build
  local status=0
  flows markfree "$PWD/bin/veridict" || status=1
  flows ctmark "$PWD/test/flowcheck/ctmark.sh" || status=1
  return "$status"
}

# The same, and each step programmed from nothing.
stage_allflows() {
  local status=0
  stage_flows || status=1
  [ -d "$flowcheck" ] || return "$status"
  flows 'markfree, each step alone' "$PWD/bin/veridict" --each-step-alone || status=1
  flows 'ctmark, each step alone' "$PWD/test/flowcheck/ctmark.sh" --each-step-alone || status=1
  return "$status"
}

# flows WHAT DRIVER OPTION... runs all scenarios against the driver.
flows() {
  local what=$1 driver=$2 log status=0
  log=$(mktemp "$results/flows-log.XXXXXX")
  shift 2
  echo "$what"
  python3 "$flowcheck/flowcheck.py" --driver "$driver" --jobs 2 "$@" | tee "$log" || status=1
  echo "$what: $(tail -n 1 "$log")" >>"$results/$stage"
  return "$status"
}

# A module of its own; programs are those of bin.
stage_apiserver() {
  need_root 'the apiserver stage'
  cd test/apiserver
  report apiserver go test -json -count=1 -p 1 -timeout 20m ./...
}

# The tests that depend most on the kernel, on each kernel in a virtual machine.
# Those of the probes patch the kernel's code; see test/vm/run.sh.
stage_vm() {
  local kernel status=0
  for kernel in ${VMKERNEL:-6.1 6.12}; do
    vm "$kernel" rules multi -test.skip='^TestProbes' || status=1
    vm "$kernel" probes single -test.run='^TestProbes' || status=1
  done
  return "$status"
}

# vm KERNEL WHAT THREADS FLAG... runs tests of test/kernel in one machine.
vm() {
  local name="vm-$1-$2" what="kernel $1, $2" status=0
  echo "$what"
  VMTHREADS=$3 report "$name" go tool test2json -t -p "$what: ./test/kernel" \
    test/vm/run.sh "$1" ./test/kernel -test.v=test2json -test.timeout=55m "${@:4}" || status=1
  echo "$what: $(cat "$results/$name")" >>"$results/vm"
  return "$status"
}

# run STAGE runs it in a shell of its own, so that any error ends it.
run() {
  printf '\n== %s ==\n' "$1"
  set +e
  (
    set -e
    "stage_$1"
  )
  local status=$?
  set -e
  echo "$status" >"$results/$1.status"
}

# total STAGES FAILED sums up the results that it reads.
total() {
  awk -v stages="$1" -v bad="$2" '
    {
      for (i = 2; i <= NF; i++) {
        if ($i ~ /^passed/) passed += $(i - 1)
        if ($i ~ /^failed/) failed += $(i - 1)
      }
    }
    END {
      printf "total: %d passed, %d failed; %d of %d stages failed\n", passed, failed, bad, stages
    }'
}

main() {
  local stage verdict failed=0
  for stage in "$@"; do
    declare -F "stage_$stage" >/dev/null || {
      echo "no such stage: $stage (want unit, root, flows, allflows, apiserver or vm)" >&2
      exit 2
    }
  done
  go build -o "$results/report" ./test/report
  for stage in "$@"; do run "$stage"; done

  printf '\n== what ran ==\n'
  for stage in "$@"; do
    verdict=ok
    [ "$(cat "$results/$stage.status")" -eq 0 ] || {
      verdict=FAILED
      failed=$((failed + 1))
    }
    [ -s "$results/$stage" ] || echo 'no result' >"$results/$stage"
    sed "s/^/$(printf '%-6s %-6s ' "$stage" "$verdict")/" "$results/$stage"
  done
  cat "${@/#/$results/}" | total $# "$failed"
  [ "$failed" -eq 0 ]
}

main "$@"
