"""Sessions of all kinds under all uses, for a minute; ``make soak`` goes on for an hour."""

from __future__ import annotations

import pytest

from .soak import KINDS, soak


@pytest.mark.large
def test_nothing_is_lost_hangs_or_is_left():
    done = soak(60.0)
    for kind in KINDS:
        assert f"{kind}: sessions" in done
        assert f"{kind}: call" in done
        assert f"{kind}: prepared" in done
        assert f"{kind}: grow" in done
    assert "distir launch: " in done or "mpiexec: " in done or "MPI: " in done
