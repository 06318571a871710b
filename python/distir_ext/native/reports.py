"""Reports of passes: numbers by pass, as data and as one log line each.

    with dx.pass_reports() as reports:
        dx.lower(mod)
    reports[0].name, reports[0].done          # ("PropagateSharding", {"functions": 2, ...})

The log line goes to the logger ``distir_ext.passes`` at level INFO::

    [SUMMARY] pass=LegalizeRedistribute matches=16 skipped=0: 12 all_gather, 4 all_reduce (0.8 ms)
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import tvm_ffi

from distir_ext.text.display import Shown
from distir_ext.text.errors.logs import package_logger
from distir_ext.text.printable import message_text

_LOGGER = package_logger("distir_ext.passes")

_open: contextvars.ContextVar[tuple[list[PassReport], ...]] = contextvars.ContextVar(
    "distir_ext_pass_reports", default=()
)


@dataclass(frozen=True)
class PassReport(Shown):
    """Report of one pass on a module."""

    name: str
    """Of the pass."""

    seconds: float
    """Duration of the pass."""

    done: dict[str, int]
    """Number of times the pass did each thing, as ``{"all_gather": 12}``."""

    skipped: dict[str, dict[str, int]]
    """Number of times the pass left each thing unchanged, by reason."""

    @property
    def matches(self) -> int:
        """Number of times the pass did something."""
        return sum(self.done.values())

    @property
    def skips(self) -> int:
        """Number of times the pass left something unchanged."""
        return sum(count for reasons in self.skipped.values() for count in reasons.values())

    def __str__(self) -> str:
        return message_text(f"{self.name}: {self._details()}")

    def _details(self) -> str:
        done = ", ".join(f"{count} {what}" for what, count in self.done.items())
        skipped = "".join(
            f"; {what} not {sum(reasons.values())} times"
            f" ({', '.join(f'{why}: {count}' for why, count in reasons.items())})"
            for what, reasons in self.skipped.items()
        )
        return f"{done or 'nothing to do'}{skipped} ({self.seconds * 1e3:.1f} ms)"

    def log_line(self) -> str:
        """The line that the logger has, with numbers that scripts find."""
        numbers = f"pass={self.name} matches={self.matches} skipped={self.skips}"
        return f"[SUMMARY] {numbers}: {self._details()}"


@contextlib.contextmanager
def pass_reports() -> Iterator[list[PassReport]]:
    """Collects reports of passes of distir_ext within the block, in the order in which they end.

    A pass that ran others that it implies has its report behind theirs, and its time includes them.

    Example:
        >>> with pass_reports() as reports:
        ...     pass
        >>> reports
        []
    """
    reports: list[PassReport] = []
    token = _open.set((*_open.get(), reports))
    try:
        yield reports
    finally:
        _open.reset(token)


def install() -> None:
    """Registers the callback that the native library calls at the end of a pass."""
    tvm_ffi.register_global_func("distir.report", record)


def record(
    name: str, done: Mapping[str, int], skipped: Mapping[str, Mapping[str, int]], seconds: float
) -> None:
    """Notes what a pass did, where it is collected or logged; the arguments are those of a report.

    ``distir.report`` is the same for the native library.
    """
    collected = _open.get()
    if not collected and not _LOGGER.isEnabledFor(logging.INFO):
        return
    report = PassReport(
        str(name),
        seconds,
        {str(what): int(count) for what, count in done.items()},
        {
            str(what): {str(why): int(count) for why, count in reasons.items()}
            for what, reasons in skipped.items()
        },
    )
    for reports in collected:
        reports.append(report)
    _LOGGER.info(report.log_line())
