#!/usr/bin/env bash
# SPDX-FileCopyrightText: The veridict authors
# SPDX-License-Identifier: Apache-2.0
#
# The driver that flowcheck runs for the ctmark layout. flowcheck calls its
# driver as "CMD run FLAGS"; the layout has to stand behind the "run".

set -euo pipefail

[ "${1:-}" = run ] || {
  echo "usage: $0 run FLAGS" >&2
  exit 2
}
shift
exec "$(dirname "$0")/../../bin/veridict" run --layout ctmark "$@"
