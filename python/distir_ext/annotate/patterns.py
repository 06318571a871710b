"""Marks the values of a function with shardings, by one plan of patterns on their names.

The plan maps regular expressions to one entry per tensor dimension. On a 2x4 mesh with the axes
"dp" and "tp", the plan ``{"x": ("dp", None), r".*up_proj.*": (None, "tp")}`` turns

    def main(x: R.Tensor((8, 64)), up_proj: R.Tensor((64, 256))):
        with R.dataflow(): ...

into

    def main(x: R.Tensor((8, 64)), up_proj: R.Tensor((64, 256))):
        x_1 = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0], R")
        up_proj_1 = R.dist.annotate_sharding(up_proj, device_mesh="mesh[0]", placement="R, S[1]")
        with R.dataflow(): ...                  # as before, on x_1 and up_proj_1

Parameters stay Tensor-typed: PropagateSharding gives them their DTensor types.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.distributed import DTensorType

from distir_ext.annotate.annotations import (
    Dims,
    Mark,
    MeshTable,
    function_to_annotate,
    split_mesh,
)
from distir_ext.annotate.axes import Axes
from distir_ext.annotate.named_plans import named_plan, searched_plan
from distir_ext.mesh.dims import dims_text
from distir_ext.mesh.mesh import Mesh, as_mesh, is_mesh
from distir_ext.mesh.notation import Notation
from distir_ext.native.reports import record
from distir_ext.structure.annotated_function import (
    PARAMETER,
    RESULT,
    Site,
    annotated_already,
    parameter_sites,
    result_sites,
    variable_sites,
    with_annotations,
)
from distir_ext.structure.training_state import state_fields
from distir_ext.structure.weights.fused_parameters import fused_parameters
from distir_ext.structure.weights.fused_weights import Separated, reported, separate_weights
from distir_ext.text.errors.plan_names import SEARCHED, check_name
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import message_text

Entries: TypeAlias = Mapping[str, Dims | tuple[Mesh, Dims | None] | Any | None]
"""From a pattern on names to dims, to dims on another mesh, or to None: replicated."""

Plan: TypeAlias = Entries | str
"""Entries, or the name of a plan that finds them: ``"tp"``, ``"fsdp"`` or ``"auto"``."""

_NAMES_IN_A_MESSAGE = 12
_REST_OF_STATE = "the rest of the state"


@short_tracebacks
def annotate(
    mod: tvm.IRModule,
    mesh: Mesh | Any,
    plan: Plan,
    func: str = "main",
    inputs: Sequence[str] | None = None,
) -> tvm.IRModule:
    """Inserts ``dist.annotate_sharding`` for the values of a function that a plan names.

    A weight that holds several, as Q | K | V, becomes a parameter for each block where the program
    splits what is computed of it along a dimension that the plan shards; ``Session.load`` takes it
    under its own name.

    A pattern names parameters. It must match the whole name (``re.fullmatch``), so a part of a name
    needs ``.*`` around it. The first pattern of the plan that matches a name decides. Fields of a
    tuple parameter ``weights`` have the names ``weights.0``, ``weights.1``, and so on for tuples in
    tuples. The result is called ``return``, its fields ``return.0``, ``return.1``; a pattern for it
    begins so. An entry that matches no parameter may be the name of a variable, as it is:
    ``"lv3"``, or ``"lv3.0"`` for a field. What no entry names is left to propagation.

    Args:
        mod: The module; it is not changed.
        mesh: The mesh that dims without a mesh of their own refer to: a :class:`Mesh`, or what it
            can be made of (of JAX, PyTorch, TVM or NumPy).
        plan: From pattern to dims: a tuple with one entry per tensor dimension, each the name of a
            mesh axis, a tuple of names (major to minor), or None. ``...`` at the end of a tuple, or
            alone, leaves a dimension open, and a :class:`Dim` gives it a priority;
            :class:`TensorDims` says which axes may not be used. None instead of dims replicates
            over all devices of the mesh. A pair ``(other_mesh, dims)`` places on another mesh.
            Instead of dims there may be a ``jax.sharding.PartitionSpec`` or ``NamedSharding``,
            PyTorch's placements (``[Shard(0), Replicate()]``), or TVM's ``Placement`` or its text.
            Or a name: ``"tp"`` shards pairs of products by columns and rows, found by what the
            function computes, ``"fsdp"`` the weights by their largest dimensions, and the batch;
            ``"auto"`` is what :func:`distir_ext.autoshard` finds for H100s.
        func: The name of the function.
        inputs: The names of the parameters that every call passes; all others are weights, which
            ``Session.load`` takes. Inputs are the first parameters. By default the function's
            attribute ``num_input`` says how many there are; without it, all parameters are inputs.

    Returns:
        The annotated module. Meshes that are used are in its global infos under "mesh", those that
        were there already first and in their order.

    Raises:
        ValueError: The function does not exist; a pattern is not a regular expression, matches
            nothing, or only what is no tensor, or is the name of several variables; dims do not
            have one entry per dimension, name an axis that the mesh lacks, or name one twice; a
            static dimension has fewer elements than shards; ``...`` is not the last of a
            dimension; inputs are not the first parameters; there is no plan of a name, or it cannot
            tell weights from inputs, or which axis of the mesh is its own, or finds nothing.
        TypeError: The mesh, the plan, dims or inputs have a wrong type.

    Warns:
        UserWarning: A pattern has no effect, as others come before it; or a value is annotated
            already.
    """
    start = time.perf_counter()
    named = as_mesh(mesh, "the mesh to annotate with")  # refuses others, also for an empty plan
    function = function_to_annotate(mod, func)
    if isinstance(plan, str):
        check_name(plan)
        if inputs is not None:
            _num_input(function, func, inputs)  # refuses others
        if plan == SEARCHED:
            return _searched(mod, named, func, inputs)
        axes = Axes(named, {}, can_be_given=False)
        plan = named_plan(mod, plan, axes, func, inputs).patterns
    names = _Names(function, func)
    chosen = _match(_compile(plan), names)
    plan = _with_state(function, plan, chosen, names)

    meshes = MeshTable(mod)
    marks: dict[Site, Mark] = {}
    known: dict[str, list[tuple[Any, Mark]]] = {}  # by entry, what it means for which types
    # Meshes are numbered in the order of the parameters, whatever that of the plan.
    others = [site for site in chosen if site not in names.parameters]
    for site in (*(site for site in names.parameters if site in chosen), *others):
        text, type_ = chosen[site]
        said_before = known.setdefault(text, [])
        for other, mark in said_before:
            if tvm_ffi.structural_equal(type_, other):
                marks[site] = mark
                break
        else:
            marks[site] = meshes.mark(str(site), *split_mesh(plan[text], mesh), type_)
            said_before.append((type_, marks[site]))
    marks = _without_repetitions(mod, func, marks, {s: chosen[s][1] for s in chosen})
    if inputs is not None:
        function = function.with_attr("num_input", _num_input(function, func, inputs))
    if marks:
        function = with_annotations(function, marks)
    if not function.same_as(mod[func]):
        mod = meshes.store(mod.clone()) if marks else mod.clone()
        mod.update_func(mod.get_global_var(func), function)
    separated = separate_weights(mod, [func])
    _report(plan, chosen, marks, separated, time.perf_counter() - start)
    return separated.mod


def values_named(function: relax.Function, func: str, plan: Entries) -> dict[Site, str]:
    """The tensors of a function that a plan names, with the pattern that does.

    Raises:
        ValueError: As :func:`annotate`, of patterns.
        TypeError: The plan has a wrong type.
    """
    chosen = _match(_compile(plan), _Names(function, func))
    return {site: text for site, (text, _) in chosen.items()}


def _searched(
    mod: tvm.IRModule, mesh: Mesh, func: str, inputs: Sequence[str] | None
) -> tvm.IRModule:
    function = mod[func]
    if inputs is not None:
        function = function.with_attr("num_input", _num_input(function, func, inputs))
        mod = mod.clone()
        mod.update_func(mod.get_global_var(func), function)
    return searched_plan(mod, mesh, func=func)


def _report(
    plan: Entries,
    chosen: Mapping[Site, tuple[str, Any]],
    marks: Mapping[Site, Mark],
    separated: Separated,
    seconds: float,
) -> None:
    """Reports the number of values that each entry has annotated, and the weights that were cut."""
    done = {f"{text}: {_described(entry)}": 0 for text, entry in plan.items()}
    there = 0
    for site, (text, _) in chosen.items():
        if site in marks:
            done[f"{text}: {_described(plan[text])}"] += 1
        else:
            there += 1
    skipped = {"annotate": {"stated already": there}} if there else {}
    cut, whole = reported(separated)
    record("AnnotateSharding", {**done, **cut}, {**skipped, **whole}, seconds)


def _with_state(
    function: relax.Function,
    plan: Entries,
    chosen: dict[Site, tuple[str, Any]],
    names: _Names,
) -> Entries:
    """Adds the state of a training step that no entry names: results as the parameters.

    A field that belongs to a parameter of the model is sharded as that. All other fields are
    replicated.
    """
    fields = state_fields(function)
    sites = {site.label: (site, type_) for site, type_ in names.parameters.items()}
    results = {site.label: (site, type_) for site, type_ in names.results.items()}
    for field in fields:
        site, type_ = sites[field.name]
        owner = sites[field.owner or field.name][0]
        if site not in chosen:
            chosen[site] = (chosen[owner][0] if owner in chosen else _REST_OF_STATE, type_)
        out, out_type = results[f"return.{field.result}"]
        chosen.setdefault(out, (chosen[site][0], out_type))
    return {**plan, _REST_OF_STATE: None} if fields else plan


def _described(entry: Any) -> str:
    if isinstance(entry, tuple) and len(entry) == 2 and is_mesh(entry[0]):
        return f"({entry[0]!r}, {_described(entry[1])})"
    return "replicated" if entry is None else dims_text(entry)


@short_tracebacks
def AnnotateSharding(  # noqa: N802 - passes are named as TVM names its own
    mesh: Mesh | Any, plan: Plan, func: str = "main", inputs: Sequence[str] | None = None
) -> tvm.transform.Pass:
    """:func:`distir_ext.annotate` as a pass, for ``tvm.transform.Sequential``.

    Arguments are those of ``annotate``. What ``annotate`` raises is raised when the pass runs.

    Args:
        mesh: The mesh of the plan.
        plan: Dims of tensors, by name or pattern.
        func: The function that is annotated.
        inputs: Parameters that every call passes; all others are weights.

    Returns:
        The pass.
    """

    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return annotate(mod, mesh, plan, func, inputs)

    return tvm.transform.module_pass(run, opt_level=0, name="AnnotateSharding")


@dataclass(frozen=True)
class _Names:
    """Names in a function that the entries of a plan may use."""

    function: relax.Function
    func: str

    @cached_property
    def parameters(self) -> dict[Site, Any]:
        return parameter_sites(self.function)

    @cached_property
    def results(self) -> dict[Site, Any]:
        return result_sites(self.function)

    @cached_property
    def variables(self) -> dict[str, list[tuple[Site, Any]]]:
        return variable_sites(self.function)

    def find(self, text: str, pattern: re.Pattern[str]) -> dict[Site, Any]:
        """The values that an entry names, with their types."""
        candidates = self.parameters
        if text.startswith("return"):
            candidates = {**candidates, **self.results}
        blocks = {
            block
            for name, (_, names) in fused_parameters(self.function).items()
            if pattern.fullmatch(name)
            for block in names
        }
        found = {
            site: type_
            for site, type_ in candidates.items()
            if pattern.fullmatch(site.label) or (site.kind == PARAMETER and site.label in blocks)
        }
        return found or self._variable(text)

    def _variable(self, text: str) -> dict[Site, Any]:
        # Fields may be written as in patterns, "lv3\.0".
        name = re.sub(r"\\(.)", r"\1", text)
        found = self.variables.get(name, [])
        if len(found) > 1:
            raise ValueError(
                f"{text!r} is the name of {len(found)} variables of function {self.func}; "
                "distir_ext.constrain or a ShardingMutator annotates one of them"
            )
        if not found:
            names = [site.label for site in self.parameters]
            hint = did_you_mean(name, [*names, *self.variables, "return"])
            raise ValueError(
                f"pattern {text!r} matches no parameter of function {self.func}, which has "
                f"{_shorten(names)}, and no variable has this name; a pattern must match a whole "
                f"name{hint}"
            )
        return dict(found)


def _compile(plan: Entries) -> dict[str, re.Pattern[str]]:
    if not isinstance(plan, Mapping):
        raise TypeError(
            f"the plan is a {type(plan).__name__}, not a mapping from patterns to dims, or a name"
        )
    patterns = {}
    for text in plan:
        if not isinstance(text, str):
            raise TypeError(f"the plan has the key {text!r}, not a pattern on names")
        try:
            patterns[text] = re.compile(text)
        except re.error as error:
            raise ValueError(f"pattern {text!r} is not a regular expression: {error}") from error
    return patterns


def _match(patterns: Mapping[str, re.Pattern[str]], names: _Names) -> dict[Site, tuple[str, Any]]:
    """Returns the first pattern that matches each tensor, and the tensor's type."""
    chosen: dict[Site, tuple[str, Any]] = {}
    for text, pattern in patterns.items():
        matched = names.find(text, pattern)
        tensors = {
            site: type_ for site, type_ in matched.items() if isinstance(type_, relax.TensorType)
        }
        if not tensors:
            site, type_ = next(iter(matched.items()))
            already = isinstance(type_, DTensorType)
            raise ValueError(
                f"pattern {text!r} matches no tensor: {site} has type {type_}"
                f"{'; it has a sharding already' if already else ''}"
            )
        if all(site in chosen for site in tensors):
            earlier = sorted({chosen[site][0] for site in tensors})
            warning = (
                f"pattern {text!r} has no effect: earlier patterns match the same parameters: "
                f"{_shorten([repr(name) for name in earlier])}"
            )
            warnings.warn(message_text(warning), stacklevel=4)
        for site, type_ in tensors.items():
            chosen.setdefault(site, (text, type_))
    return chosen


def _without_repetitions(
    mod: tvm.IRModule, func: str, marks: Mapping[Site, Mark], types: Mapping[Site, Any]
) -> dict[Site, Mark]:
    """The annotations that are not there yet; warns of those that come on top of others."""
    kept = dict(marks)
    there = annotated_already(mod[func]) if marks else {}
    for site, mark in marks.items():
        if site not in there:
            continue
        stated = Mark.of(there[site])
        if stated.says_the_same(mark):
            del kept[site]
            consequence = "with the same sharding; nothing changes"
        else:
            notation = Notation(mod)
            words = dims_text(stated.dims(notation, types[site]))
            words += notation.mesh_text(stated.type_of(types[site]))
            consequence = (
                f"as {words}; it gets both, and is redistributed from one to the other. To replace "
                "an annotation, annotate the module without it"
            )
        name = f"the {site}" if site.kind == RESULT else str(site)
        warning = message_text(f"{name} of {func} is annotated already, {consequence}")
        warnings.warn(warning, stacklevel=4)
    return kept


def _num_input(function: relax.Function, func: str, inputs: Sequence[str]) -> int:
    names = [str(param.name) for param in function.params]
    if isinstance(inputs, str) or not all(isinstance(name, str) for name in inputs):
        raise TypeError(f"inputs are {inputs!r}, not a list of names of parameters")
    for name in inputs:
        if name not in names:
            raise ValueError(
                f"input {name!r} is no parameter of function {func}, which has "
                f"{_shorten(names)}{did_you_mean(name, names)}"
            )
    first = names[: len(set(inputs))]
    if set(first) != set(inputs):
        weight = next(name for name in first if name not in inputs)
        last = next(name for name in inputs if name not in first)
        raise ValueError(
            f"inputs are the first parameters of a function, but in {func}({_shorten(names)}) "
            f"{weight!r} comes before {last!r}; name it as an input too, or change the order"
        )
    return len(first)


def _shorten(names: Iterable[str]) -> str:
    listed = list(names)
    rest = len(listed) - _NAMES_IN_A_MESSAGE
    shown = ", ".join(listed[:_NAMES_IN_A_MESSAGE]) or "none"
    return f"{shown} and {rest} more" if rest > 0 else shown
