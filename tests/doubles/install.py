"""Putting doubles where the code under test looks for the real programs."""

from __future__ import annotations

import sys
from pathlib import Path

COMPILER = Path(__file__).with_name("neuronx_cc.py")


def install_compiler(folder: Path) -> Path:
    """An executable `neuronx-cc` in `folder` that runs the double; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "neuronx-cc"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{COMPILER}" "$@"\n')
    program.chmod(0o755)
    return program
