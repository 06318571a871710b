"""Raises or warns if a module has redistributions that no annotation asks for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import tvm

from distir_ext.mesh.cluster import Cluster
from distir_ext.reshards.reshards import reshards as list_reshards
from distir_ext.reshards.reshards_result import Reshard
from distir_ext.text.errors.spelling import counted, did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import TextLines, message_text
from distir_ext.text.tables import amount

POLICIES = ("allow", "warn", "error")

# Redistributions that a message describes; for as many, annotations are tried.
_MOST = 3


@short_tracebacks
def CheckReshards(  # noqa: N802 - passes are named as TVM names its own
    reshards: str = "error", reshards_above: float = 0, cluster: Cluster | None = None
) -> tvm.transform.Pass:
    """Stops at implicit redistributions, as a pass that changes nothing.

    Args:
        reshards: ``"error"``, ``"warn"`` or ``"allow"``.
        reshards_above: Bytes that a device may send for one redistribution.
        cluster: The devices and links, as for :func:`distir_ext.lower`.

    Raises:
        ValueError: ``reshards`` is none of these words, or ``reshards_above`` is negative.

    Raises (when applied):
        ValueError: There are such redistributions; names the most expensive ones, with what causes
            them and what to state instead (:func:`distir_ext.analysis.reshards` lists all).

    Warns (when applied):
        UserWarning: The same, for ``"warn"``.
    """
    check_policy(reshards, reshards_above)

    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        apply_policy(mod, cluster, reshards, reshards_above)
        return mod

    return tvm.transform.module_pass(run, opt_level=0, name="CheckReshards")


def check_policy(reshards: str, reshards_above: float) -> None:
    """Raises an error unless the policy and its limit are valid.

    Raises:
        ValueError: as :func:`CheckReshards`.
    """
    if reshards not in POLICIES:
        hint = did_you_mean(reshards, POLICIES) if isinstance(reshards, str) else ""
        raise ValueError(f"reshards={reshards!r} is none of {', '.join(map(repr, POLICIES))}{hint}")
    if not isinstance(reshards_above, int | float) or not reshards_above >= 0:
        raise ValueError(f"reshards_above= is a number of bytes, not {reshards_above!r}")


def apply_policy(
    mod: tvm.IRModule, cluster: Cluster | None, reshards: str, reshards_above: float
) -> None:
    """Warns or raises as :func:`CheckReshards` does; does nothing for ``"allow"``."""
    if reshards == "allow":
        return
    found = list_reshards(mod, cluster, suggestions=_MOST).reshards
    costly = [each for each in found if each.bytes_per_device > reshards_above]
    if not costly:
        return
    text = TextLines(_message(costly, reshards_above))
    if reshards == "error":
        raise ValueError(text)
    warnings.warn(message_text(text), stacklevel=4)


def _message(costly: list[Reshard], above: float) -> Iterator[str]:
    number = counted(sum(each.count for each in costly), "redistribution")
    bound = f" of more than {amount(above, 'B')} per device" if above else ""
    yield f"nobody asked for {number}{bound}, but two sides disagree:"
    for each in costly[:_MOST]:
        yield f"{each} in `{each.function}`"
        for chain in (each.source_cause, each.target_cause):
            # The sharded tensor and the statement that shards it, without the steps between.
            heads = [line for line in chain if not line.startswith(" ")]
            yield from (f"    {line}" for line in (*heads[-1:], *chain[-1:]))
        yield from (f"    {line}" for line in each.uneven)
        if each.suggestion is not None:
            yield f"    instead, state {each.suggestion}"
    rest = "" if len(costly) <= _MOST else f"{len(costly) - _MOST} of these lines left out; "
    yield f'{rest}distir_ext.analysis.reshards lists all, reshards="allow" lets them through'
