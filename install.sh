#!/usr/bin/env bash
# install.sh VENV TARGET: makes the virtual environment and installs TARGET (. or .[test]) into it, pinned.
set -euo pipefail
venv=$1 target=$2
python=${PYTHON:-}
if [ -z "$python" ]; then
    echo "dart-chat needs Python 3.11 or newer; install one, or name it: make chat PYTHON=/path/to/python3" >&2
    exit 2
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
torch=$(grep '^torch==' constraints.txt)

if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
    if command -v nvidia-smi >/dev/null; then
        "${pip[@]}" install --progress-bar on "$torch"
    else
        # Without an NVIDIA GPU the CPU build does: 0.9 GB instead of several.
        "${pip[@]}" install --progress-bar on "$torch+cpu" 2>/dev/null ||
            "${pip[@]}" install --progress-bar on "$torch" --index-url https://download.pytorch.org/whl/cpu ||
            "${pip[@]}" install --progress-bar on "$torch"
    fi
fi
"${pip[@]}" install --quiet -c constraints.txt --editable "$target"
