# Sourced by the other scripts: the virtual environment .venv at the repository root, made and filled when need be.
#
# Sets ROOT and VENV. `ensure_venv` installs what a run needs, `ensure_venv dev` also what checks and tests need.
# Installs only when pyproject.toml or constraints.txt changed since the last time. PYTHON names the interpreter to
# make it with; without PYTHON an environment that is there stays as it is.

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=$ROOT/.venv

ensure_venv() {
    local extra=${1:-} wanted
    make_venv
    wanted=$(fingerprint)
    if [[ $(recorded run) == "$wanted" && (-z $extra || $(recorded "$extra") == "$wanted") ]]; then
        return
    fi
    say "installing into $VENV (the first time this fetches about 400 MB and takes some minutes)"
    "$VENV/bin/python" -m pip --version > /dev/null 2>&1 || "$VENV/bin/python" -m ensurepip > /dev/null
    rm -f "$VENV"/.installed-*
    (cd -- "$ROOT" && "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
        -c constraints.txt -e ".${extra:+[$extra]}") >&2 ||
        die "the installation failed: read pip's message above; it needs a package index and about 1.5 GB of disk"
    printf '%s\n' "$wanted" > "$VENV/.installed-run"
    [[ -z $extra ]] || printf '%s\n' "$wanted" > "$VENV/.installed-$extra"
}

# Prints the fingerprint of the last installation, nothing when there was none.
recorded() {
    [[ ! -f $VENV/.installed-$1 ]] || cat -- "$VENV/.installed-$1"
}

# What the installation depends on: both files, and where the repository lies (an editable install points there).
fingerprint() {
    "$VENV/bin/python" -c '
import hashlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
parts = [str(root).encode(), *((root / name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))]
print(hashlib.sha256(b"\0".join(parts)).hexdigest())' "$ROOT"
}

make_venv() {
    local present wanted_version
    present=$(version_of "$VENV/bin/python")
    if [[ -n $present && -z ${PYTHON:-} ]]; then
        return
    fi
    local python=${PYTHON:-python3}
    command -v -- "$python" > /dev/null || die "$python: no such interpreter: install Python 3.11 or newer, or set PYTHON to one"
    wanted_version=$(version_of "$python")
    [[ -n $wanted_version ]] || die "$python does not run: set PYTHON to a Python 3.11 or newer"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "$python is Python $wanted_version: expected 3.11 or newer: set PYTHON to one, as in PYTHON=python3.12 $0"
    if [[ $present == "$wanted_version" ]]; then
        return
    fi
    "$python" -c 'import ensurepip, venv' 2> /dev/null ||
        die "$python cannot make virtual environments: install its venv module (Debian and Ubuntu: apt install python3-venv)"
    say "making $VENV with Python $wanted_version"
    "$python" -m venv --clear "$VENV" >&2
}

# Prints nothing for an interpreter that is not there or does not run.
version_of() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null || true
}

say() {
    printf '%s: %s\n' "$(basename -- "$0")" "$1" >&2
}

die() {
    say "error: $1"
    exit 2
}
