"""Packs the wheels that the check needs, for machines without a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from distir_ext._version import __version__


def make_bundle(folder: str) -> int:
    """Downloads distir-ext with its extra ``cuda``, for this machine's Python and system.

    A wheel of distir-ext that lies in the folder is taken instead of the published one.

    Args:
        folder: Folder for the wheels; it is made.

    Returns:
        The exit status of pip.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    status = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download"),
            *("--dest", str(target), "--find-links", str(target), "--only-binary", ":all:"),
            f"distir-ext[cuda]=={__version__}",
        ],
        check=False,
    ).returncode
    if status == 0:
        print(
            f"On the machine with GPUs: pip install --no-index --find-links {target.name} "
            "'distir-ext[cuda]' && distir gpu-check"
        )
    return status
