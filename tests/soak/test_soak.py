"""Sessions of all kinds under all uses, for a minute; ``make soak`` goes on for an hour."""

from __future__ import annotations

import pytest

from .launched import without_a_token_file
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


def test_only_the_file_of_one_token_may_be_left():
    kept = ["distir_ext-abcd_123", "distir_ext-abcd_123/token"]
    assert without_a_token_file(kept) == without_a_token_file(kept[:1]) == []
    for more in ("weights", "distir_ext-abcd_123/more", "distir_ext-abcd_123/token/more"):
        assert more in without_a_token_file(sorted([*kept, more]))
    other = ["distir_ext-abcd_456", "distir_ext-abcd_456/token"]
    assert without_a_token_file([*kept, *other]) == other
    for name in ("tmpabcd1234", "distir_ext-", "distir_ext-abcd_1234", "distir_ext-abcd_12/a"):
        assert without_a_token_file([name]) == [name]
