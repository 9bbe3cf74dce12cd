#!/bin/sh
# Makes the virtual environment bench/peers/.venv with the versions that requirements.txt pins, for the scripts in
# bench/peers, reference and examples. PyTorch's wheel for Linux brings its CUDA libraries along: about 6 GB on disk,
# though nothing here needs a GPU. Where PyTorch's own CPU wheels can be reached, naming their index with
# PIP_EXTRA_INDEX_URL and the version with TORCH (such as torch==2.15.0+cpu) saves most of that. Keras runs on
# PyTorch (KERAS_BACKEND=torch), so TensorFlow is not needed.
set -eu
cd "$(dirname "$0")"

if [ ! -x .venv/bin/python ]; then
    "${PYTHON:-python3}" -m venv .venv
fi
.venv/bin/python -m pip install --quiet --upgrade "pip>=24"
if [ -n "${TORCH:-}" ]; then
    grep -v '^torch==' requirements.txt > .venv/requirements.txt
    echo "$TORCH" >> .venv/requirements.txt
else
    cp requirements.txt .venv/requirements.txt
fi
.venv/bin/python -m pip install --quiet --requirement .venv/requirements.txt
KERAS_BACKEND=torch .venv/bin/python - <<'END'
import keras, numpy, safetensors, sklearn, torch

print(f"torch {torch.__version__}, keras {keras.__version__}, numpy {numpy.__version__}, scikit-learn {sklearn.__version__}")
END
