#!/usr/bin/env bash
# SPDX-FileCopyrightText: The veridict authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests of one package on a Debian kernel in a virtual machine that
# qemu emulates; KVM is not needed. Prints what the test program prints and ends
# with its exit status. The machine has two processors, so that lookups can race
# commits. It is slow: nothing that it measures says how fast veridict is.
#
# usage: [VMTHREADS=single] test/vm/run.sh 6.1|6.12 PACKAGE [TEST FLAG...]
#   e.g. test/vm/run.sh 6.1 ./test/kernel -test.v -test.run Churn
#
# With VMTHREADS=single the processors take turns. Tests that attach tracing
# programs need that: with a thread for each processor, qemu 7.2 hangs when the
# kernel patches a function that the other processor is calling.
#
# The unpacked kernel is kept below .cache/vm. The console is shown if a test fails.

set -euo pipefail
shopt -s inherit_errexit
export PATH="$PATH:/usr/local/go/bin:/usr/sbin:/sbin"
cd "$(dirname "$0")/../.."

cache=$PWD/.cache/vm
programs=(nft modprobe bpftool)

die() {
  printf 'vm: %s\n' "$*" >&2
  exit 1
}

# package_of KERNEL prints the name of the newest Debian package with it.
package_of() {
  case $1 in
    6.1) apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: //p' ;;
    6.12) apt-cache pkgnames 'linux-image-6.12.' | grep -- '-cloud-amd64-unsigned$' | sort -V | tail -n 1 ;;
    *) die "unknown kernel '$1': want 6.1 or 6.12" ;;
  esac
}

# fetch KERNEL unpacks its package below the cache, unless it is there, and
# prints where. Nothing is installed.
fetch() {
  local package root archive
  package=$(package_of "$1")
  [ -n "$package" ] || die "apt knows no package with kernel $1: it needs Debian 12's, try apt-get update"
  root=$cache/$package
  if [ ! -d "$root" ]; then
    archive=$(mktemp -d "$cache/fetch.XXXXXX")
    (cd "$archive" && apt-get -qq -o APT::Sandbox::User=root download "$package" >&2) || die "could not download $package: try apt-get update"
    dpkg -x "$archive"/*.deb "$archive/root"
    mv "$archive/root" "$root"
    rm -r "$archive"
  fi
  echo "$root"
}

# install_programs ROOT copies programs and the libraries that they load.
install_programs() {
  local program
  for program in "${programs[@]}"; do
    program=$(command -v "$program") || die "$program is missing: make setup installs it"
    install -D "$program" "$1/sbin/$(basename "$program")"
    install_libraries "$program" "$1"
  done
  # Tests put shell scripts in the place of programs.
  install -D /bin/sh "$1/bin/sh"
  install_libraries /bin/sh "$1"
}

# install_libraries PROGRAM ROOT copies the libraries that a program loads.
install_libraries() {
  local file
  ldd "$1" | grep -o '/[^ ]*' | while read -r file; do
    install -D "$file" "$2$file"
  done
}

# install_modules FROM ROOT copies the modules of the network, with those that
# they need in turn, and indexes them for modprobe.
install_modules() {
  local release from to
  release=$(basename "$1"/lib/modules/*)
  from=$1/lib/modules/$release to=$2/lib/modules/$release
  mkdir -p "$to"
  (
    cd "$from"
    find kernel/net kernel/drivers/net/veth.ko* kernel/lib kernel/crypto -name '*.ko*' -print0 |
      xargs --null cp --parents --target-directory="$to"
    cp modules.{builtin,builtin.modinfo,order} "$to"
  )
  depmod -b "$2" "$release"
}

# pack FROM ROOT ARCHIVE PACKAGE FLAG... makes the initial file system.
pack() {
  local from=$1 root=$2 archive=$3 package=$4
  shift 4
  mkdir -p "$root"/test
  CGO_ENABLED=0 go build -o "$root/init" ./test/vm/init
  CGO_ENABLED=0 go test -c -o "$root/test/program" "$package"
  printf '%s\n' "$@" >"$root/test/arguments"
  install_programs "$root"
  install_modules "$from" "$root"
  (cd "$root" && find . | cpio --quiet --create --format=newc --owner=0:0) >"$archive"
}

# boot FROM ARCHIVE CONSOLE runs the machine and prints what the test program does.
boot() {
  timeout --foreground 1h nice -n 5 qemu-system-x86_64 \
    -machine q35 -accel "tcg,thread=${VMTHREADS:-multi}" -cpu max -smp 2 -m 2048 \
    -nodefaults -no-reboot -display none \
    -serial "file:$3" -serial stdio \
    -kernel "$1"/boot/vmlinuz-* -initrd "$2" \
    -append 'console=ttyS0 quiet panic=-1 random.trust_cpu=on' </dev/null
}

main() {
  [ $# -ge 2 ] || die "want a kernel and a package, see the head of $0"
  local from status console kernel=$1 package=$2
  shift 2
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/run.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  console=$work/console
  from=$(fetch "$kernel")
  pack "$from" "$work/root" "$work/initrd" "$package" "$@"
  boot "$from" "$work/initrd" "$console" || echo "vm: qemu ended with status $?" >&2
  status=$(tr -d '\r' <"$console" | sed -n 's/^VMEXIT://p')
  [ -n "$status" ] || {
    tail -n 40 "$console" >&2
    die 'the machine ended before the tests did; above is the end of its console'
  }
  [ "$status" -eq 0 ] || tail -n 40 "$console" >&2
  return "$status"
}

main "$@"
