"""Compares one program under two annotations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.relax.distributed import DTensorType

from distir_ext.analysis.costs import CollectiveCost, Estimate
from distir_ext.analysis.diff_result import CollectiveChange, Difference, ShardingChange, Total
from distir_ext.analysis.estimate import estimate
from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.notation import Notation
from distir_ext.native.modules import check_module
from distir_ext.native.steps import phase, steps_until
from distir_ext.pipelines.lowering import run_steps
from distir_ext.structure.annotated_function import Site, parameter_sites, variable_sites
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks

_UNSHARDED = "every device has all of it"


@short_tracebacks
def diff(
    a: tvm.IRModule | Estimate,
    b: tvm.IRModule | Estimate,
    cluster: Cluster | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> Difference:
    """Compares two annotations of a program: cost and shardings.

    Args:
        a: The program as it is: a module in any phase before LowerCCL, or an :class:`Estimate`.
        b: The same program with other annotations, or its estimate.
        cluster: The devices, for modules, as for :func:`estimate`.
        sizes: Values for symbolic sizes of modules, by name.

    Returns:
        Tensors that are sharded differently, collectives that vanish and appear, and the totals.
        Shardings are compared where both modules have not come further than PropagateSharding.

    Raises:
        ValueError: These are not the same program: one has a function or parameter that the other
            lacks; or as :func:`estimate`.
        TypeError: One is neither a module nor an estimate; modules without a cluster.
    """
    shardings: tuple[ShardingChange, ...] = ()
    notes: list[str] = []
    if isinstance(a, tvm.IRModule) and isinstance(b, tvm.IRModule):
        _check_same_program(a, b)
        if all(phase(mod) in ("annotated", "propagated") for mod in (a, b)):
            shardings = tuple(_sharding_changes(a, b))
        else:
            notes.append("shardings are compared of modules that are annotated or propagated")
    before, after = (_estimated(each, cluster, sizes) for each in (a, b))
    _check_names(
        "function", _functions(before), _functions(after), "the first program", "the second"
    )
    return Difference(
        tuple(_totals(before, after)),
        tuple(_collective_changes(before, after)),
        shardings,
        (*notes, *dict.fromkeys((*before.notes, *after.notes))),
    )


def _estimated(which: Any, cluster: Cluster | None, sizes: Mapping[str, int] | None) -> Estimate:
    if isinstance(which, Estimate):
        return which
    check_module(which)
    if cluster is None:
        raise TypeError("modules are compared on a cluster; state cluster=")
    return estimate(which, cluster, sizes=sizes)


def _functions(of: Estimate) -> dict[str, None]:
    return dict.fromkeys(program.function for program in of.programs)


def _check_same_program(a: tvm.IRModule, b: tvm.IRModule) -> None:
    first, second = ({str(gv.name_hint): f for gv, f in _public(mod)} for mod in (a, b))
    _check_names("function", first, second, "the first module", "the second")
    for name, function in first.items():
        mine, theirs = (
            [site.label for site in parameter_sites(each)] for each in (function, second[name])
        )
        _check_names("parameter", mine, theirs, f"{name} of the first module", "that of the second")


def _check_names(
    what: str, first: Iterable[str], second: Iterable[str], of_first: str, of_second: str
) -> None:
    mine, theirs = list(first), list(second)
    for names, others, here, there in (
        (mine, theirs, of_first, of_second),
        (theirs, mine, of_second, of_first),
    ):
        for name in names:
            if name not in others:
                raise ValueError(
                    f"only annotations of one program can be compared: {here} has the {what} "
                    f"{name!r}, {there} has not{did_you_mean(name, others)}"
                )


def _public(mod: tvm.IRModule) -> Iterator[tuple[Any, relax.Function]]:
    for gv, function in mod.functions_items():
        if isinstance(function, relax.Function) and "global_symbol" in (function.attrs or {}):
            yield gv, function


# ---- shardings


def _sharding_changes(a: tvm.IRModule, b: tvm.IRModule) -> Iterator[ShardingChange]:
    named = _named(a)
    before, after = _shardings(a), _shardings(b)
    for key, sharding in before.items():
        if key in named and key in after and after[key] != sharding:
            yield ShardingChange(*key, sharding, after[key])


def _named(mod: tvm.IRModule) -> set[tuple[str, str]]:
    """The functions and values that the user's program has; passes make others."""
    return {
        (str(gv.name_hint), site.label)
        for gv, function in mod.functions_items()
        if isinstance(function, relax.Function)
        for site, _ in _sites(function)
    }


def _shardings(mod: tvm.IRModule) -> dict[tuple[str, str], str]:
    propagated = mod
    if phase(mod) == "annotated":
        steps = steps_until("propagated")
        propagated = run_steps(mod, None, steps, tvm.transform.Sequential([]))
    notation = Notation(propagated)
    return {
        (str(gv.name_hint), site.label): (
            notation.text(type_) if isinstance(type_, DTensorType) else _UNSHARDED
        )
        for gv, function in propagated.functions_items()
        if isinstance(function, relax.Function)
        for site, type_ in _sites(function)
    }


def _sites(function: relax.Function) -> Iterator[tuple[Site, Any]]:
    """Parameters, then variables, that are tensors."""
    listed = [*parameter_sites(function).items()]
    listed += [each for found in variable_sites(function).values() for each in found]
    for site, type_ in listed:
        if isinstance(type_, relax.TensorType | DTensorType):
            yield site, type_


# ---- costs


def _totals(before: Estimate, after: Estimate) -> Iterator[Total]:
    def kernels(of: Estimate) -> float:
        return max((each.cost.seconds for each in of.programs), default=0.0)

    def collectives(of: Estimate) -> float:
        return max((each.collective_seconds for each in of.programs), default=0.0)

    yield Total("flops", "FLOP", before.flops, after.flops)
    yield Total("bytes accessed", "B", before.bytes_accessed, after.bytes_accessed)
    yield Total("bytes sent", "B", before.bytes_sent, after.bytes_sent)
    yield Total("kernels", "s", kernels(before), kernels(after))
    yield Total("collectives", "s", collectives(before), collectives(after))
    yield Total("time", "s", before.seconds, after.seconds)
    yield Total("peak memory", "B", before.peak_memory, after.peak_memory)


def _collective_changes(before: Estimate, after: Estimate) -> list[CollectiveChange]:
    first, second = _collectives(before), _collectives(after)
    changes = []
    for key in dict.fromkeys((*first, *second)):
        function, kind, axes, operators, size = key
        old, new = (sum(each.count for each in of.get(key, ())) for of in (first, second))
        if old == new:
            continue
        most = (second if new > old else first)[key]
        tensors = tuple(dict.fromkeys(name for each in most for name in each.tensors))
        seconds = most[0].seconds
        changes.append(
            CollectiveChange(function, kind, axes, operators, tensors, size, seconds, old, new)
        )
    return sorted(changes, key=lambda each: -each.seconds * abs(each.after - each.before))


def _collectives(of: Estimate) -> dict[Any, list[CollectiveCost]]:
    found: dict[Any, list[CollectiveCost]] = {}
    for program in of.programs:
        for each in program.collectives:
            key = (program.function, each.kind, each.axes, each.operators, each.bytes_per_device)
            found.setdefault(key, []).append(each)
    return found
