"""Makes and reads the token that the controller and the hosts of a session share."""

from __future__ import annotations

import math
import os
import secrets
import stat
import string
from pathlib import Path

from distir_ext.text.files.regular_file import open_file

TOKEN_VARIABLE = "DISTIR_EXT_TOKEN"
FILE_VARIABLE = "DISTIR_EXT_TOKEN_FILE"

_FEWEST_BITS = 128
_FEWEST_SYMBOLS = 8  # a random token with that many bits has more different characters
_LONGEST = 4096  # bytes; no token is that long

# From small to large; a token has the bits that it would have as random characters of the first one
# that has all of its characters.
_ALPHABETS = (
    string.digits,
    string.digits + "abcdef",
    string.digits + "ABCDEF",
    string.ascii_lowercase,
    string.ascii_uppercase,
    string.ascii_lowercase + string.digits,
    string.ascii_uppercase + string.digits,
    string.ascii_letters + string.digits + "+/-_=",
    string.printable,
)
_ANY_CHARACTER = len(string.printable)


def make_token(path: str | os.PathLike[str]) -> None:
    """Writes a new token of 256 random bits into a file that only its owner may read.

    Raises:
        OSError: the file exists, or cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(os.path.expanduser(path), flags, 0o600)  # noqa: PTH111
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(new_token() + "\n")


def new_token() -> str:
    """256 random bits."""
    return secrets.token_hex(32)


def is_token_stated() -> bool:
    """Returns whether the environment states a token, or the file of one."""
    return any(os.environ.get(name) for name in (TOKEN_VARIABLE, FILE_VARIABLE))


def read_token(token_file: str | os.PathLike[str] | None) -> bytes:
    """The token of a file, without white space around it, or of the environment.

    Raises:
        OSError: the file cannot be read.
        ValueError: there is no token, the file is somebody else's, others than its owner may read
            or write it, or the token has fewer than 128 bits; says which command makes a good one.
    """
    stated = os.environ.get(TOKEN_VARIABLE, "").strip()
    stated_file = os.environ.get(FILE_VARIABLE, "").strip()
    if token_file is not None:
        return check_token(_read_file(token_file), f"in {token_file}")
    if stated and stated_file:
        raise ValueError(
            f"both {TOKEN_VARIABLE} and {FILE_VARIABLE} are set, so that it is not clear which "
            "token counts; unset one of them"
        )
    if stated_file:
        return check_token(_read_file(stated_file), f"in {stated_file}")
    if TOKEN_VARIABLE in os.environ:
        return check_token(stated, f"in {TOKEN_VARIABLE}")
    raise ValueError(
        f"hosts need a token that they share: a file of it, or the environment variable "
        f"{TOKEN_VARIABLE} (or {FILE_VARIABLE}, a file's name); make one with: distir token FILE"
    )


def check_token(token: str, source: str) -> bytes:
    """The bytes of a token.

    Args:
        token: The token, without white space around it.
        source: Its source, in words.

    Raises:
        ValueError: it has fewer than 128 bits.
    """
    bits = _bits(token)
    if bits < _FEWEST_BITS:
        raise ValueError(
            f"the token {source} can be guessed: it has {bits} bits, fewer than {_FEWEST_BITS}; "
            "make one with: distir token FILE"
        )
    try:
        return token.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"the token {source} is not UTF-8; make one with: distir token FILE"
        ) from None


def _read_file(path: str | os.PathLike[str]) -> str:
    with open_file(Path(os.path.expanduser(path))) as file:  # noqa: PTH111
        status = os.fstat(file.fileno())
        if status.st_uid not in (os.geteuid(), 0):  # root reads everybody's
            raise ValueError(
                f"the file of the token, {path}, is somebody else's (user {status.st_uid}); make a "
                "new token with: distir token FILE"
            )
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise ValueError(
                f"others than its owner may read or write the file of the token, {path} (mode "
                f"{stat.S_IMODE(status.st_mode):04o}); make a new token with: distir token FILE"
            )
        content = file.read(_LONGEST + 1)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or len(content) > _LONGEST:
        raise ValueError(f"{path} has no token; make one with: distir token FILE")
    return text.strip()


def _bits(token: str) -> int:
    """Returns an upper bound on a token's random bits; 0 if it is evidently not random."""
    if len(set(token)) < _FEWEST_SYMBOLS:
        return 0
    sizes = (len(alphabet) for alphabet in _ALPHABETS if set(token) <= set(alphabet))
    return math.floor(len(token) * math.log2(next(sizes, _ANY_CHARACTER)))
