#!/usr/bin/env bash
# The four checks that need no run: format, lint, types, imports between rooms. All run; it fails if any failed.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_venv.sh"

ensure_venv dev
cd -- "$ROOT"
failed=()

check() {
    "$VENV/bin/$1" "${@:2}" || failed+=("$*")
}

check ruff format --check .
check ruff check .
check mypy
check lint-imports
if [[ ${#failed[@]} -gt 0 ]]; then
    printf 'check.sh: failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
