"""Whether errors show all frames, also those that say nothing to whoever made a mistake."""

from __future__ import annotations

import os

VARIABLE = "DISTIR_EXT_FULL_TRACEBACKS"


def are_tracebacks_full() -> bool:
    """Whether the environment asks for them."""
    return bool(os.environ.get(VARIABLE))
