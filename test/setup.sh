#!/usr/bin/env bash
# SPDX-FileCopyrightText: The veridict authors
# SPDX-License-Identifier: Apache-2.0
#
# Sees to it that the programs are there which a make target needs. On Debian
# and Ubuntu it installs the missing ones with apt-get; elsewhere it names them
# and stops. It says nothing where all is there.
#
# usage: test/setup.sh demo|test|apiserver|vm|lint|generate|all

set -euo pipefail
export PATH="$PATH:/usr/local/go/bin:/usr/sbin:/sbin"

die() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# What each purpose needs, as program:package. The packages are Debian's.
programs_for() {
  local fetch='git:git ca-certificates:ca-certificates'
  local kernel='nft:nftables iptables:iptables conntrack:conntrack ip:iproute2'
  case $1 in
    demo) echo "$fetch $kernel" ;;
    test) echo "$fetch $kernel bpftool:bpftool gcc:gcc libc-headers:libc6-dev python3.11:python3 crun:crun kubectl:kubernetes-client" ;;
    apiserver) echo "$fetch $kernel etcd:etcd-server etcdctl:etcd-client kubectl:kubernetes-client" ;;
    vm) echo "$fetch nft:nftables bpftool:bpftool qemu-system-x86_64:qemu-system-x86 cpio:cpio depmod:kmod" ;;
    lint) echo "$fetch shellcheck:shellcheck" ;;
    generate) echo "$fetch clang-14:clang-14 llvm-strip-14:llvm-14 bpf-headers:libbpf-dev" ;;
    all) echo "make:make $(programs_for test) $(programs_for apiserver) $(programs_for lint) $(programs_for generate)" ;;
    *) die "unknown purpose '$1': want demo, test, apiserver, vm, lint, generate or all" ;;
  esac
}

# Four needs are more than a name in PATH: Go downloads modules over TLS, the BPF
# programs want headers, the race detector links against the C library, and
# flowcheck (nothing else) wants Python 3.11.
present() {
  case $1 in
    ca-certificates)
      ls "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" ||
        ls /etc/pki/tls/certs/ca-bundle.crt || ls /etc/ssl/ca-bundle.pem || ls /etc/ssl/cert.pem
      ;;
    bpf-headers) ls /usr/include/bpf/bpf_helpers.h /usr/include/"$(uname -m)"-linux-gnu/asm/types.h ;;
    libc-headers) echo '#include <stdlib.h>' | gcc -E - ;;
    python3.11)
      [ ! -d ../shared/flowcheck ] ||
        python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'
      ;;
    *) command -v "$1" ;;
  esac >/dev/null 2>&1
}

missing() {
  local entry
  for entry in $(programs_for "$1" | tr ' ' '\n' | sort -u); do
    present "${entry%%:*}" || echo "$entry"
  done
}

install_packages() {
  local packages=("$@")
  echo "setup: installing ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update || die 'apt-get update failed; the lines above say why'
  apt-get -qq install --yes --no-install-recommends "${packages[@]}" >/dev/null ||
    die "apt-get could not install ${packages[*]}"
}

main() {
  cd "$(dirname "$0")/.."
  command -v go >/dev/null ||
    die 'Go is missing: install it from https://go.dev/dl/ and put it into PATH'

  local purpose=${1:-all} want
  programs_for "$purpose" >/dev/null
  mapfile -t want < <(missing "$purpose")
  [ "${#want[@]}" -gt 0 ] || return 0

  local names="${want[*]%%:*}"
  command -v apt-get >/dev/null ||
    die "missing programs: $names. This is no Debian or Ubuntu: install them and call again"
  [ "$(id -u)" -eq 0 ] ||
    die "missing programs: $names. Call again as root, or install the packages ${want[*]##*:}"
  install_packages "${want[@]##*:}"

  mapfile -t want < <(missing "$purpose")
  [ "${#want[@]}" -eq 0 ] ||
    die "still missing after the installation: ${want[*]%%:*}"
}

main "$@"
