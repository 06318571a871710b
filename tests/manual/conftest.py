"""Sessions by number of workers."""

from tests.numerical.conftest import session_of

__all__ = ["session_of"]
