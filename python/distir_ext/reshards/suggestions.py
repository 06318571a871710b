"""Suggests annotations that remove redistributions: tries candidates and keeps those that do."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.annotate.annotations import Dims, Mark
from distir_ext.annotate.patterns import annotate
from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.dims import read_dim
from distir_ext.mesh.mesh import Mesh
from distir_ext.mesh.notation import Notation, meshes
from distir_ext.native.warnings import silenced
from distir_ext.pipelines.lowering import run_apart
from distir_ext.reshards.moved_tensors import Advice, MovedTensors, Names
from distir_ext.reshards.reshards_result import RESHARD, STATED, Reshard, Suggestion
from distir_ext.signature.signature_attr import read_signature
from distir_ext.structure.annotated_function import (
    PARAMETER,
    VARIABLE,
    Site,
    annotated_already,
    parameter_sites,
    variable_sites,
    without_annotations,
)
from distir_ext.structure.weights.fused_parameters import fused_parameters

# Ways that are tried for one redistribution, and pairs of them.
_MOST_CANDIDATES = 6
_MOST_PAIRS = 3
# Part of a redistribution's time from which on what is saved is enough, and no more is tried.
_ENOUGH = 0.5


@dataclass(frozen=True)
class _Candidate:
    """Annotations of some values of a function that may be suggested together."""

    function: str
    parts: tuple[tuple[tuple[Site, ...], Dims], ...]
    mesh: Mesh

    @property
    def sites(self) -> tuple[Site, ...]:
        """The values that are annotated."""
        return tuple(site for sites, _ in self.parts for site in sites)


@dataclass(frozen=True)
class _Totals:
    bytes_sent: float
    seconds: float
    parameter_bytes: float


class Suggestions:
    """Tries annotations on copies of an annotated module.

    Args:
        mod: An annotated module.
        cluster: As for :func:`distir_ext.lower`.
        lowered: The lowered module.
        moved: Its redistributions.
        names: Those of the module.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        cluster: Cluster | None,
        lowered: tvm.IRModule,
        moved: MovedTensors,
        names: Names,
    ) -> None:
        self._mod = mod
        self._cluster = cluster
        self._moved = moved
        self._names = names
        self._now = _totals(lowered, moved)
        self._tried: dict[_Candidate, tuple[MovedTensors, _Totals] | None] = {}

    def best(self, entry: Reshard, advice: Iterable[Advice]) -> Suggestion | None:
        """The first way without the redistribution that saves its time and takes no memory.

        If there is none, the one that saves most of those that take none, or one that saves time
        with larger parameters, or else the one that costs least. Pairs come last.
        """
        candidates = dict.fromkeys(self._candidates(entry, advice))
        singles = list(itertools.islice(candidates, _MOST_CANDIDATES))
        pairs = itertools.islice(_pairs(singles), _MOST_PAIRS)
        return self._best_of(entry, itertools.chain(singles, pairs))

    def best_of_tried(self, entry: Reshard) -> Suggestion | None:
        """Returns the best suggestion among those already tried for other redistributions."""
        return self._best_of(entry, list(self._tried))

    def _best_of(self, entry: Reshard, candidates: Iterable[_Candidate]) -> Suggestion | None:
        found: list[tuple[bool, bool, float, int, Suggestion]] = []
        for candidate in candidates:
            tried = self._try(candidate)
            if tried is None or not _is_gone(entry, self._moved, tried[0]):
                continue
            suggestion = self._suggestion(candidate, tried[1])
            grows = suggestion.parameter_bytes_change > 0
            seconds = suggestion.seconds_change
            if -seconds >= _ENOUGH * entry.total_seconds and seconds < 0 and not grows:
                return suggestion
            found.append((seconds >= 0, grows, seconds, len(found), suggestion))
        return min(found)[-1] if found else None

    # ---- candidates

    def _candidates(self, entry: Reshard, advice: Iterable[Advice]) -> Iterator[_Candidate]:
        """Ways to try, the ones that are most like what is stated now first."""
        together: dict[tuple[str, str, Dims], list[str]] = {}
        for each in advice:
            key = (each.function, without_numbers(each.variable), each.dims)
            together.setdefault(key, []).append(each.variable)
        ways: list[list[_Candidate]] = [[], [], [], []]
        for (function, _, dims), names in together.items():
            own = self._sites(function, names)
            if not own:
                continue
            there = annotated_already(self._mod[function])
            stated = self._stated(there[own[0]]) if own[0] in there else None
            mesh = self._mesh(there.get(own[0]))
            if stated is not None and (alike := self._stated_alike(function, own, there)) != own:
                ways[3].append(_Candidate(function, ((alike, dims),), mesh))
            for sites in dict.fromkeys((self._in_all_layers(function, own, there), own)):
                ways[0].append(_Candidate(function, ((sites, dims),), mesh))
                if stated is None or len(stated) != len(dims):
                    continue
                kept = _keeping(dims, stated, f"{entry.source} {entry.target}")
                ways[1].append(_Candidate(function, ((sites, kept),), mesh))
                if len(dims) == 2:  # the other dimension of a matrix, as Megatron pairs them
                    ways[2].append(_Candidate(function, ((sites, stated[::-1]),), mesh))
        # Of each way one, then the next of each.
        for turn in itertools.zip_longest(*map(dict.fromkeys, ways)):
            yield from filter(None, turn)

    def _in_all_layers(
        self, function: str, own: tuple[Site, ...], there: Mapping[Site, relax.Call]
    ) -> tuple[Site, ...]:
        """Parameters and those that differ from them in numbers and are annotated alike."""
        if own[0].kind != PARAMETER or own[0] not in there:
            return own
        pattern, stated = without_numbers(own[0].label), self._stated(there[own[0]])
        return tuple(
            site
            for site in parameter_sites(self._mod[function])
            if re.fullmatch(pattern, site.label)
            and site in there
            and self._stated(there[site]) == stated
        )

    def _stated_alike(
        self, function: str, own: tuple[Site, ...], there: Mapping[Site, relax.Call]
    ) -> tuple[Site, ...]:
        """Parameters and others of their shape that are annotated alike, as summands are."""
        types = parameter_sites(self._mod[function])
        if own[0] not in there or own[0] not in types:
            return own
        stated, shape = self._stated(there[own[0]]), types[own[0]].shape
        alike = tuple(
            site
            for site, type_ in types.items()
            if site in there
            and isinstance(type_, relax.TensorType)
            and tvm_ffi.structural_equal(type_.shape, shape)
            and self._stated(there[site]) == stated
        )
        return tuple(dict.fromkeys((*own, *alike)))

    def _sites(self, function: str, names: Sequence[str]) -> tuple[Site, ...]:
        """The values that a plan can name."""
        if function not in self._names.functions():
            return ()
        body = self._mod[function]
        by_name: dict[str, list[Site]] = {}
        for site, type_ in parameter_sites(body).items():
            if isinstance(type_, relax.TensorType):
                by_name.setdefault(site.label, []).append(site)
        for label, found in variable_sites(body).items():
            if label not in by_name and len(found) == 1:
                by_name[label] = [found[0][0]]
        wanted = dict.fromkeys(self._names.variable(function, name) for name in names)
        if not all(len(by_name.get(name, ())) == 1 for name in wanted):
            return ()
        found_sites = [by_name[name][0] for name in self._all_blocks(function, wanted)]
        return tuple(found_sites)

    def _all_blocks(self, function: str, names: Iterable[str]) -> list[str]:
        """Names, of blocks of a weight all of them: plans name the weight."""
        fused = fused_parameters(self._mod[function]).values()
        others = {block: blocks for _, blocks in fused for block in blocks}
        return list(dict.fromkeys(each for name in names for each in others.get(name, (name,))))

    def _stated(self, mark: relax.Call) -> Dims | None:
        """Returns the dims that an annotation states; None if they cannot be written as dims."""
        try:
            return Mark.of(mark).dims(Notation(self._mod), mark.args[0].ty)
        except (TypeError, ValueError):
            return None

    def _mesh(self, mark: relax.Call | None) -> Mesh:
        known = meshes(self._mod)
        if mark is not None:
            devices = {int(device) for device in Mark.of(mark).device_mesh.device_ids}
            for mesh in known:
                if set(mesh.device_ids) == devices:
                    return mesh
        return known[0]

    # ---- trials

    def _try(self, candidate: _Candidate) -> tuple[MovedTensors, _Totals] | None:
        if candidate not in self._tried:
            self._tried[candidate] = self._tried_anew(candidate)
        return self._tried[candidate]

    def _tried_anew(self, candidate: _Candidate) -> tuple[MovedTensors, _Totals] | None:
        name, plan = candidate.function, self._plan(candidate)
        function = without_annotations(self._mod[name], candidate.sites)
        mod = self._mod.clone()
        mod.update_func(mod.get_global_var(name), function)
        try:
            with silenced(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                mod = annotate(mod, candidate.mesh, plan, func=name)
                lowered, optimized = run_apart(mod, self._cluster)
        except ValueError:  # the plan does not fit the tensors
            return None
        moved = MovedTensors(lowered, optimized, self._names)
        return moved, _totals(lowered, moved)

    def _plan(self, candidate: _Candidate) -> dict[str, Dims]:
        plan: dict[str, Dims] = {}
        for sites, dims in candidate.parts:
            plan |= self._plan_of(candidate, sites, dims)
        return plan

    def _plan_of(
        self, candidate: _Candidate, sites: tuple[Site, ...], dims: Dims
    ) -> dict[str, Dims]:
        fused = fused_parameters(self._mod[candidate.function])
        whole = {block: name for name, (_, blocks) in fused.items() for block in blocks}
        labels = [site.label for site in sites]
        names = list(dict.fromkeys(whole.get(label, label) for label in labels))
        if sites[0].kind == VARIABLE:
            return dict.fromkeys(names, dims)
        pattern = without_numbers(names[0])
        if len(names) > 1:
            every = parameter_sites(self._mod[candidate.function])
            given = {whole.get(site.label, site.label) for site in every}
            if {each for each in given if re.fullmatch(pattern, each)} == set(names):
                return {pattern: dims}
        return {re.escape(name): dims for name in names}

    def _suggestion(self, candidate: _Candidate, after: _Totals) -> Suggestion:
        return Suggestion(
            candidate.function,
            self._plan(candidate),
            candidate.mesh,
            after.bytes_sent - self._now.bytes_sent,
            after.seconds - self._now.seconds,
            after.parameter_bytes - self._now.parameter_bytes,
        )


def _pairs(candidates: Sequence[_Candidate]) -> Iterator[_Candidate]:
    """Annotations of two values each, of those that are annotated alone."""
    for one, other in itertools.combinations(candidates, 2):
        is_apart = not set(one.sites) & set(other.sites)
        if is_apart and (one.function, one.mesh) == (other.function, other.mesh):
            yield _Candidate(one.function, one.parts + other.parts, one.mesh)


def without_numbers(name: str) -> str:
    r"""A pattern of the names that differ from this one in numbers of their own.

    Example:
        >>> without_numbers("layers.11.mlp.fc2.weight")
        'layers\\.\\d+\\.mlp\\.fc2\\.weight'
    """
    return re.sub(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])", r"\\d+", re.escape(name))


def _keeping(dims: Dims, stated: Dims, conflict: str) -> Dims:
    """Dims that keep what is stated over axes that no side of a conflict has."""
    used = set(re.findall(r"'(\w+)", conflict)) | {axis for each in dims for axis in _axes(each)}
    return tuple(
        old if new is None and not used.intersection(_axes(old)) else new
        for new, old in zip(dims, stated, strict=True)
    )


def _axes(each: Any) -> tuple[str, ...]:
    return read_dim("dims", each).axes


def _is_gone(entry: Reshard, before: MovedTensors, after: MovedTensors) -> bool:
    """Returns whether an entry's tensors no longer move, and its readers need no new moves."""

    def moves_for_readers(moved: MovedTensors) -> set[tuple[str, str]]:
        return {
            (move.row.tensor, reader)
            for move in moved.moves
            if move.row.kind in (RESHARD, STATED) and move.row.function == entry.function
            for reader in move.row.readers or ("",)
            if reader in (entry.readers or ("",))
        }

    others = {each for each in moves_for_readers(before) if each[0] not in entry.tensors}
    return moves_for_readers(after) <= others


def _totals(lowered: tvm.IRModule, moved: MovedTensors) -> _Totals:
    entries = [
        str(program["name"])
        for function in read_signature(lowered)["functions"].values()
        for program in function["programs"]
    ]
    return _Totals(
        sum(move.row.total_bytes for move in moved.moves),
        sum(move.row.total_seconds for move in moved.moves),
        sum(_bytes(param.ty) for name in entries for param in lowered[name].params),
    )


def _bytes(type_: Any) -> float:
    if isinstance(type_, relax.TupleType):
        return sum(_bytes(each) for each in type_.fields)
    shape = getattr(type_, "shape", None)
    if not isinstance(type_, relax.TensorType) or not isinstance(shape, relax.ShapeExpr):
        return 0.0
    sizes = [int(each) for each in shape.values if isinstance(each, tvm.tirx.IntImm)]
    return math.prod(sizes) * max(int(tvm.DataType(str(type_.dtype)).bits), 8) / 8
