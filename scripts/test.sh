#!/usr/bin/env bash
# Checks and tests, as CI runs them: scripts/test.sh [flags of pytest]. Both run; it fails if either does.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_venv.sh"

ensure_venv dev
cd -- "$ROOT"
status=0
scripts/check.sh || status=1
"$VENV/bin/python" -m pytest "$@" || status=1
exit "$status"
