#!/usr/bin/env bash
# Explore a model on this machine, from nothing but Python: scripts/explore.sh [MODEL] [flags of `mapper explore`].
# Without MODEL it is squeezenet, which comes with the onnx package.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_venv.sh"

model=${MODEL:-zoo:squeezenet}
if [[ $# -gt 0 && $1 != -* ]]; then
    model=$1
    shift
fi
ensure_venv
exec "$VENV/bin/mapper" explore "$model" "$@"
