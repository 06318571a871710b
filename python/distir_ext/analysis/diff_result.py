"""Parts of a comparison of two annotations of a program."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from distir_ext.text.display import Printed


@dataclass(frozen=True)
class Total:
    """One figure of both programs, of the device that has most."""

    name: str
    """``"flops"``, ``"bytes accessed"``, ``"bytes sent"``, ``"kernels"``, ``"collectives"``,
    ``"time"`` or ``"peak memory"``."""

    unit: str
    """``"FLOP"``, ``"B"`` or ``"s"``."""

    before: float
    """Of the first program."""

    after: float
    """Of the second program."""

    @property
    def ratio(self) -> float | None:
        """After by before; None where there was nothing before."""
        return self.after / self.before if self.before else None


@dataclass(frozen=True)
class ShardingChange:
    """A tensor that both programs shard differently."""

    function: str
    """Of the module."""

    tensor: str
    """The variable, ``weights.0`` for a field of a tuple."""

    before: str
    """As ``"('dp', None)"``; ``"every device has all of it"`` where it takes no part."""

    after: str
    """In the second program."""


@dataclass(frozen=True)
class CollectiveChange:
    """A collective that one of the programs runs more often; both sides of branches count."""

    function: str
    """The function of the module."""

    kind: str
    """As ``"all_gather"``."""

    axes: tuple[str, ...]
    """The mesh axes that it communicates over."""

    operators: tuple[str, ...]
    """The operators because of which it is there."""

    tensors: tuple[str, ...]
    """Tensors that are sent more often than before."""

    bytes_per_device: float
    """Bytes that a device sends in one of them."""

    seconds: float
    """The time of one of them, in the program that has more."""

    before: int
    """Number that the first program runs."""

    after: int
    """Number that the second program runs."""


@dataclass(frozen=True, repr=False)
class Difference(Printed):
    """Differences in cost and shardings between two annotations of a program.

    ``print`` shows tables, notebooks show them as HTML. :meth:`rows` is for pandas,
    :meth:`to_json` for machines.
    """

    totals: tuple[Total, ...]
    """Operations, bytes, time and memory of both."""

    collectives: tuple[CollectiveChange, ...]
    """Those that vanish or appear, the most expensive first."""

    shardings: tuple[ShardingChange, ...]
    """Tensors, parameters first; none where estimates were compared."""

    notes: tuple[str, ...] = field(default=())
    """Costs that the figures leave out."""

    def __getitem__(self, name: str) -> Total:
        """The total of a name.

        Args:
            name: The name of one of ``totals``.

        Raises:
            KeyError: There is none; names those there are.
        """
        for total in self.totals:
            if total.name == name:
                return total
        raise KeyError(f"there is no total {name!r}, only {[each.name for each in self.totals]}")

    def rows(self) -> list[dict[str, Any]]:
        """Totals, collectives and shardings, a dict each, for ``pandas.DataFrame``."""
        totals = [
            {
                "what": "total",
                "name": each.name,
                "before": each.before,
                "after": each.after,
                "ratio": each.ratio,
            }
            for each in self.totals
        ]
        collectives = [{"what": "collective", **asdict(each)} for each in self.collectives]
        shardings = [{"what": "sharding", **asdict(each)} for each in self.shardings]
        return [*totals, *collectives, *shardings]

    def to_json(self) -> str:
        """Returns the comparison as JSON."""
        return json.dumps({"rows": self.rows(), "notes": list(self.notes)})
