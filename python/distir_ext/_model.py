"""An executable on the workers of a session: its functions, called with global arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm_ffi

from distir_ext._disco import Workers
from distir_ext._global_arrays import ArgumentCutter, Sizes, flatten, join, shard_for
from distir_ext._signature import FunctionSpec, ParamSpec, Signature, parse_signature, unflatten

# Per rank the worker's shards of a function's weights, by parameter index.
Weights = Sequence[Mapping[int, Any]]


class ModelFunction:
    """One function of a loaded executable. Calling it runs it on all workers."""

    def __init__(
        self,
        workers: Workers,
        spec: FunctionSpec,
        machines: Sequence[Any],
        weights: Weights,
        sizes: Sizes,
    ) -> None:
        self._workers = workers
        self._spec = spec
        self._weights = weights
        self._sizes = sizes
        self._functions: list[Any] = []
        for device, machine in zip(workers.device_ids, machines, strict=True):
            program = spec.program_of.get(device)
            self._functions.append(None if program is None else machine[program.name])

    def __call__(self, *inputs: Any) -> Any:
        """Runs the function.

        Args:
            *inputs: Global arrays for the inputs, in order: NumPy, TVM, or anything with
                ``__dlpack__`` on the CPU.

        Returns:
            The global result, a ``tvm.runtime.Tensor``; nested tuples of them for a tuple.

        Raises:
            TypeError: the wrong number of inputs, or a wrong dtype.
            ValueError: a wrong shape.
            WorkerError: a worker failed; the session is closed.
            RuntimeError: the session is closed.
        """
        spec = self._spec
        if len(inputs) != len(spec.inputs):
            names = ", ".join(param.name for param in spec.inputs)
            raise TypeError(
                f'"{spec.name}" takes {len(spec.inputs)} inputs ({names}), {len(inputs)} were given'
            )
        cutter = ArgumentCutter(self._sizes)
        cuts = [
            cutter.cut(value, param.spec, f'input "{param.name}" of "{spec.name}"')
            for value, param in zip(inputs, spec.inputs, strict=True)
        ]
        arguments = []
        for rank, device in enumerate(self._workers.device_ids):
            program = spec.program_of.get(device)
            weights = self._weights[rank]
            arguments.append(
                [
                    shard_for(device, cuts[index]) if index < spec.num_input else weights[index]
                    for index in (() if program is None else program.params)
                ]
            )
            if program is not None and program.sizes:
                sizes = tuple(cutter.binding.sizes[name][0] for name in program.sizes)
                arguments[-1].append(tvm_ffi.Shape(sizes))
        results = self._workers.run(spec.name, self._functions, arguments)
        return self._assemble(results, cutter)

    def _assemble(self, results: Sequence[Any], cutter: ArgumentCutter) -> Any:
        spec = self._spec
        shards: list[dict[int, Any]] = [{} for _ in spec.result_leaves]
        for device, result in zip(self._workers.device_ids, results, strict=True):
            program = spec.program_of.get(device)
            if program is None:
                continue
            values = list(flatten(result))
            if len(values) != len(program.results):
                raise ValueError(
                    f'program "{program.name}" returned {len(values)} values on device {device}, '
                    f"the signature says {len(program.results)}"
                )
            for index, value in zip(program.results, values, strict=True):
                shards[index][device] = value
        joined = [
            join(leaf, held, f'result {index} of "{spec.name}"', cutter.binding)
            for index, (leaf, held) in enumerate(zip(spec.result_leaves, shards, strict=True))
        ]
        return unflatten(spec.result, iter(joined))

    def __repr__(self) -> str:
        return f"<ModelFunction {self._spec}>"


class Model:
    """An executable on the workers of a session; ``model["main"]`` is one of its functions."""

    def __init__(self, functions: Mapping[str, ModelFunction]) -> None:
        self._functions = dict(functions)

    def __getitem__(self, name: str) -> ModelFunction:
        """A function by name.

        Raises:
            KeyError: there is none; names those there are.
        """
        if name not in self._functions:
            known = ", ".join(f'"{each}"' for each in self._functions)
            raise KeyError(f'the executable has no function "{name}"; it has {known}')
        return self._functions[name]

    def __contains__(self, name: object) -> bool:
        return name in self._functions

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __repr__(self) -> str:
        lines = ["<Model", *(f"  {function._spec}" for function in self._functions.values())]
        return "\n".join(lines) + ">"


def load_model(
    workers: Workers, exe: Any, params: Mapping[str, Any] | Sequence[Any] | None
) -> Model:
    """Hands an executable to all workers and cuts its weights; see ``Session.load``."""
    module = _executable_module(exe)
    signature = _read_signature(module)
    missing = sorted(set(signature.device_ids) - set(workers.device_ids))
    if missing:
        raise ValueError(
            f"the executable needs {len(signature.device_ids)} devices "
            f"{list(signature.device_ids)}, the session has {workers.num_workers} workers for "
            f"devices {list(workers.device_ids)}"
        )
    weights, sizes = _cut_weights(workers, signature, _weights_by_name(signature, params))
    load = tvm_ffi.get_global_func("distir.runtime.load_virtual_machine")
    record = tvm_ffi.get_global_func("distir.runtime.record_operator")
    everyone = range(workers.num_workers)
    machines = workers.run("load", [load for _ in everyone], [[module, record] for _ in everyone])
    return Model(
        {
            name: ModelFunction(workers, spec, machines, weights[name], sizes[name])
            for name, spec in signature.functions.items()
        }
    )


def _executable_module(exe: Any) -> Any:
    if hasattr(exe, "jit"):
        return exe.jit()
    if isinstance(exe, tvm_ffi.Module):
        return exe
    raise TypeError(f"expected an executable from dx.build, got {type(exe).__name__}")


def _read_signature(module: Any) -> Signature:
    # The controller's own machine also finds out, before any worker does, whether the executable
    # calls functions that do not exist.
    machine = tvm_ffi.get_global_func("distir.runtime.load_virtual_machine")(module, None)
    if not machine.implements_function("distir_signature"):
        raise ValueError("the executable has no distir_signature; build it with dx.build")
    signature = parse_signature(str(machine["distir_signature"]()))
    for function in signature.functions.values():
        for program in function.programs:
            if not machine.implements_function(program.name):
                raise ValueError(
                    f'the executable has no function "{program.name}", which its signature has as '
                    f'a program of "{function.name}"'
                )
    return signature


def _weights_by_name(
    signature: Signature, params: Mapping[str, Any] | Sequence[Any] | None
) -> dict[str, Any]:
    """The given weights by name: exactly those that the executable's functions have."""
    lists = {function.weights for function in signature.functions.values() if function.weights}
    names = {param.name for weights in lists for param in weights}
    if params is None:
        given: dict[str, Any] = {}
    elif isinstance(params, Mapping):
        given = {str(name): value for name, value in params.items()}
    else:
        values = list(params)
        if len(lists) > 1:
            raise ValueError(
                "the functions of the executable have different weights; pass them by name"
            )
        weights: tuple[ParamSpec, ...] = next(iter(lists), ())
        if len(values) != len(weights):
            expected = ", ".join(param.name for param in weights)
            raise ValueError(
                f"the executable has {len(weights)} weights ({expected}), {len(values)} were given"
            )
        given = {param.name: value for param, value in zip(weights, values, strict=True)}
    missing = sorted(names - set(given))
    if missing:
        raise ValueError(f"no value was given for the weights {missing}")
    unknown = sorted(set(given) - names)
    if unknown:
        raise ValueError(f"the executable has no weights {unknown}; it has {sorted(names)}")
    return given


def _cut_weights(
    workers: Workers, signature: Signature, given: Mapping[str, Any]
) -> tuple[dict[str, Weights], dict[str, Sizes]]:
    """Each worker's shards of the weights, and the sizes they bind, by function."""
    cutters = {name: ArgumentCutter() for name in signature.functions}
    cuts: dict[ParamSpec, Any] = {}
    for name, function in signature.functions.items():
        for param in function.weights:
            where = f'weight "{param.name}" of "{name}"'
            cuts.setdefault(param, cutters[name].cut(given[param.name], param.spec, where))
    # Functions that take the same weight with the same type share its shards.
    needed: list[list[ParamSpec]] = []
    for device in workers.device_ids:
        mine = {}
        for function in signature.functions.values():
            if device in function.program_of:
                for index in function.program_of[device].params:
                    if index >= function.num_input:
                        mine[function.params[index]] = True
        needed.append(list(mine))
    keep = tvm_ffi.get_global_func("distir.runtime.keep")
    results = workers.run(
        "cut weights",
        [keep for _ in needed],
        [
            [shard_for(device, cuts[param]) for param in mine]
            for device, mine in zip(workers.device_ids, needed, strict=True)
        ],
    )
    held = [dict(zip(mine, kept, strict=True)) for mine, kept in zip(needed, results, strict=True)]
    weights = {
        name: [
            {index: mine[param] for index, param in enumerate(function.params) if param in mine}
            for mine in held
        ]
        for name, function in signature.functions.items()
    }
    return dict(weights), {name: cutter.binding.sizes for name, cutter in cutters.items()}
