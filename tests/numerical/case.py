"""One operator call to check, with its expected sharding behaviour, independent of the rules.

``letters`` name the factors of each dimension as in an einsum: the same letter in two tensors is
the same factor, ``.`` is a dimension that no factor shards, and ``(ab)`` is one dimension made of
two factors, major first. A matrix product is ``Operand((4, 8), "ik")``, ``Operand((8, 6), "kj")``,
results ``("ij",)``, combined ``"k"``.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

DimFactors = tuple[str, ...]


def parse_letters(letters: str) -> DimFactors:
    """The factors of each dimension: ``"(ab).c"`` gives ``("ab", "", "c")``."""
    found = re.findall(r"\(([a-z]+)\)|([a-z.])", letters)
    return tuple(group or single.replace(".", "") for group, single in found)


@dataclass(frozen=True)
class Operand:
    """A tensor argument."""

    shape: tuple[int, ...]
    letters: str
    dtype: str = "float32"
    values: str = "normal"
    """How the data is drawn, see :func:`draw`."""

    @property
    def dims(self) -> DimFactors:
        return parse_letters(self.letters)


@dataclass(frozen=True, eq=False)
class Case:
    """A call of one operator on given shapes and attributes."""

    op: str
    label: str
    operands: tuple[Operand, ...]
    results: tuple[str, ...]
    """Letters of the result, or of the fields of a tuple result."""
    apply: Callable[..., Any]
    """From the operands' variables to the Relax call."""
    combined: str = ""
    """Letters over which shards are combined by a reduction."""
    decomposed: str = ""
    """Letters of dimensions that need replication, and that a decomposition may keep sharded."""
    moves: bool = False
    """Whether elements move between the shards along these, so that their dimensions may have other
    extents in every tensor, and shards need not divide them; ``sizes`` has the least extents."""
    stays: bool = False
    """Whether these are sharded only where operands and results both are by their other uses."""
    communicates: frozenset[str] = frozenset({"all_reduce"})
    """Kinds of collectives that the decomposition runs."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of factors that are no dimension of their own."""
    exact: bool = False
    """Whether the result must be equal bit by bit: integers, and whatever only moves data."""
    expensive: bool = False
    """Whether the decomposition has many operators to compile: the default run has a quarter
    of the programs."""
    numpy: Callable[..., Any] | None = None
    """The same on NumPy arrays, where NumPy has it."""

    def __post_init__(self) -> None:
        for operand in self.operands:
            assert len(operand.dims) == len(operand.shape), f"{self}: letters of {operand}"

    def factor_sizes(self) -> dict[str, int]:
        sizes = dict(self.sizes)
        for operand in self.operands:
            for size, letters in zip(operand.shape, operand.dims, strict=True):
                if len(letters) == 1:
                    sizes.setdefault(letters, size)
        return sizes

    def __str__(self) -> str:
        shapes = ", ".join(f"{o.dtype}{list(o.shape)}" for o in self.operands)
        return f"{self.op} {self.label}({shapes})"

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        return [draw(rng, operand) for operand in self.operands]


def draw(rng: np.random.Generator, operand: Operand) -> np.ndarray:
    """Data for an operand.

    ``normal``, ``positive`` (0.5 to 2), ``unit`` (-0.9 to 0.9), ``above one`` (1.1 to 3),
    ``nonzero`` (0.5 to 2 with either sign), ``special`` (with infinities and NaN), ``distinct`` (no
    two equal), ``wide`` (from -40 to 40), ``masked`` (half of them -inf, the rest up to 80 from 0),
    ``few`` (0 to 2), ``shift`` (0 to 5), ``index n`` (0 to n - 1), ``around n`` (1 - n to n - 1),
    ``ascending``, ``fraction`` (0 to 0.99), ``distribution`` (rows that sum to 1), ``regions``
    (rows of 0 or 1 and a box within 6 by 6), ``starts n`` (of sequences that end at n). Integers
    come from -9 to 9.
    """
    shape, values = operand.shape, operand.values
    dtype = np.dtype(getattr(ml_dtypes, operand.dtype, operand.dtype))
    if values.startswith("around"):
        size = int(values.split()[1])
        data = rng.integers(1 - size, size, shape)
    elif values.startswith("index"):
        data = rng.integers(0, int(values.split()[1]), shape)
    elif values == "distinct":
        data = rng.permutation(int(np.prod(shape))).reshape(shape) - int(np.prod(shape)) // 2
    elif values == "wide":
        data = rng.uniform(-40, 40, shape)
    elif values == "masked":
        data = np.where(rng.random(shape) < 0.5, -np.inf, rng.uniform(-80, 80, shape))
    elif values == "few":
        data = rng.integers(0, 3, shape)
    elif values == "shift":
        data = rng.integers(0, 6, shape)
    elif dtype == np.bool_:
        data = rng.integers(0, 2, shape)
    elif dtype.kind in "iu":
        data = rng.integers(-9, 10, shape)
        data = np.abs(data) if dtype.kind == "u" else data
        if values in ("positive", "nonzero"):
            data = np.where(data == 0, 3, data if values == "nonzero" else np.abs(data))
    elif values == "positive":
        data = rng.uniform(0.5, 2.0, shape)
    elif values == "unit":
        data = rng.uniform(-0.9, 0.9, shape)
    elif values == "above one":
        data = rng.uniform(1.1, 3.0, shape)
    elif values == "nonzero":
        data = rng.uniform(0.5, 2.0, shape) * rng.choice([-1.0, 1.0], shape)
    elif values == "ascending":
        data = np.sort(rng.standard_normal(shape))
    elif values.startswith("starts"):
        end = int(values.split()[1])
        inner = rng.choice(np.arange(1, end), shape[0] - 2, replace=False)
        data = np.concatenate([[0], np.sort(inner), [end]])
    elif values == "fraction":
        data = rng.uniform(0, 0.99, shape)
    elif values == "distribution":
        data = rng.uniform(0.5, 1.5, shape)
        data = data / data.sum(-1, keepdims=True)
    elif values == "regions":
        corner, size = rng.uniform(0, 2, (2, *shape[:1], 2)) + np.array([0, 1])[:, None, None]
        data = np.concatenate([rng.integers(0, 2, (shape[0], 1)), corner, corner + size], 1)
    elif values == "special":
        data = rng.choice([np.nan, np.inf, -np.inf, 0.0, 1.5, -2.5], shape)
    else:
        assert values == "normal", values
        data = rng.standard_normal(shape)
    return np.asarray(data, dtype=dtype, order="C")


def moved_along(letters: str, shapes: Sequence[Sequence[int]]) -> tuple[str, dict[str, Any]]:
    """Letters for the dimensions marked ``.``, along which elements move to other shards, and what
    else a case says of them."""
    sizes = {}
    for name in "pqrs"[: letters.count(".")]:
        dim = len(parse_letters(letters[: letters.index(".")]))
        sizes[name] = min(shape[dim] for shape in shapes)
        letters = letters.replace(".", name, 1)
    return letters, {
        "decomposed": "".join(sizes),
        "moves": True,
        "sizes": sizes,
        "communicates": frozenset({"segment_exchange"}),
    }


def broadcast_letters(shapes: list[tuple[int, ...]], result: tuple[int, ...]) -> list[str]:
    """Letters of operands that broadcast to ``result``, whose letters are ``a``, ``b``, ..."""
    names = "abcdefgh"
    spelled = []
    for shape in shapes:
        offset = len(result) - len(shape)
        spelled.append(
            "".join(
                names[offset + d] if size == result[offset + d] else "."
                for d, size in enumerate(shape)
            )
        )
    return spelled
