"""A folder of files by key: bounded, owner-only, for several processes at once.

What is in a file is run by whoever reads it, so that nobody else may write to the folder. A file is
written under another name and renamed, so that readers see all of it or none; it begins with a
checksum, and one that does not fit is as if it was not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "program-"
_UNFINISHED = ".unfinished-"
_ABANDONED_SECONDS = 3600  # an unfinished file that is older is of a process that was killed
_CHECKSUM_BYTES = 32
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True)
class CacheFolder:
    """A folder, and the size that its files may have."""

    path: Path
    most_bytes: int
    """Largest sum of the sizes of all files; the files used longest ago are removed first."""

    def read(self, key: str) -> bytes | None:
        """The content of the file of a key, which is then the one used last; None if there is none.

        Args:
            key: Letters and digits.

        Raises:
            OSError: The folder cannot be made or opened.
            ValueError: Others may write to the folder, or own it.
        """
        with self._opened() as folder:
            try:
                descriptor = os.open(_PREFIX + key, _READ, dir_fd=folder)
            except OSError:
                return None
            with os.fdopen(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or not _is_private(found):
                    return None
                try:
                    content = file.read(min(found.st_size, self.most_bytes) + _CHECKSUM_BYTES)
                    os.utime(descriptor)
                except OSError:
                    return None
        checksum, content = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
        return content if checksum == _checksum(key, content) else None

    def write(self, key: str, content: bytes) -> bool:
        """Writes the file of a key, and removes files above the bound.

        Args:
            key: As for :meth:`read`.
            content: What the file has.

        Returns:
            False if it is larger than the bound, and is not written.

        Raises:
            OSError: The folder cannot be written to.
            ValueError: As for :meth:`read`.
        """
        if len(content) + _CHECKSUM_BYTES > self.most_bytes:
            return False
        with self._opened() as folder:
            unfinished = _UNFINISHED + secrets.token_hex(16)
            descriptor = os.open(unfinished, _WRITE, 0o600, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_checksum(key, content))
                    file.write(content)
                os.rename(unfinished, _PREFIX + key, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(unfinished, dir_fd=folder)
                raise
            self._remove_oldest(folder)
        return True

    def _remove_oldest(self, folder: int) -> None:
        files, now = [], time.time()
        with os.scandir(folder) as entries:
            for each in entries:
                with contextlib.suppress(FileNotFoundError):  # another process removes files, too
                    found = each.stat(follow_symlinks=False)
                    if each.name.startswith(_PREFIX):
                        files.append((found.st_mtime_ns, found.st_size, each.name))
                    elif (
                        each.name.startswith(_UNFINISHED)
                        and now - found.st_mtime > _ABANDONED_SECONDS
                    ):
                        os.unlink(each.name, dir_fd=folder)
        above = sum(size for _, size, _ in files) - self.most_bytes
        for _, size, name in sorted(files):
            if above <= 0:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            above -= size

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The descriptor of the folder, through which all of its files are reached."""
        with contextlib.suppress(FileExistsError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(0o700)
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not _is_private(os.fstat(descriptor)):
                raise ValueError(
                    f"{self.path} belongs to somebody else, or others may write to it; what it has "
                    f"is run, so that only you may: choose another folder, or `chmod go-w` it"
                )
            yield descriptor
        finally:
            os.close(descriptor)


def _is_private(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE


def _checksum(key: str, content: bytes) -> bytes:
    digest = hashlib.blake2b(key.encode() + b"\0", digest_size=_CHECKSUM_BYTES)
    digest.update(content)
    return digest.digest()
