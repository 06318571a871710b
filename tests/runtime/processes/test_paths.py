"""Files whose names are not UTF-8, as systems allow."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save
from tests.stages.programs import chain, chain_result, chain_values

import distir_ext as dx

WIDTHS = [8, 12, 8]
MESH = dx.Mesh(tp=2)
X, WEIGHTS = chain_values(WIDTHS, rows=6)
NAME = os.fsdecode(b"weights-\xff\xe9.safetensors")


def test_weights_are_loaded_and_what_is_wrong_leaves_the_session_open(tmp_path, agents):
    exe = dx.build(
        dx.annotate(chain(WIDTHS, rows=6), MESH, {"w0": (None, "tp"), "w1": ("tp", None)})
    )
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    file = folder / NAME
    file.write_bytes(save(WEIGHTS))
    hosts = dx.Hosts([each.address for each in agents])
    for workers in ("threads", "processes", hosts):
        with dx.Session(MESH, workers=workers) as session:
            for path in (file, str(file)):
                found = session.load(exe, params=path)["main"](X).numpy()
                expected = chain_result(X, WEIGHTS)
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
            with pytest.raises(OSError, match="away"):
                session.load(exe, params=folder / os.fsdecode(b"away\xff"))
            damaged = Path(tmp_path / os.fsdecode(b"\xff.safetensors"))
            damaged.write_bytes(save(WEIGHTS)[:-100])
            with pytest.raises(ValueError, match=r"safetensors"):
                session.load(exe, params=damaged)
            assert not session.closed
