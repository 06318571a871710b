"""An executable on the workers of a session: its functions, called with global arrays."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm_ffi

from distir_ext.mesh.mesh_axes import MeshAxes, NamedMesh
from distir_ext.native.executables import executable_module
from distir_ext.native.step_names import read_step_names
from distir_ext.params.blocks import JoinedBlocks
from distir_ext.params.held_array import HeldArray
from distir_ext.params.matching import Params
from distir_ext.params.safetensors import write_checkpoint
from distir_ext.params.shards import write_shards
from distir_ext.session.function_calls import FunctionCalls, LoadedFunction, Origin
from distir_ext.session.microbatches import BatchDims
from distir_ext.session.pipeline import Pipeline
from distir_ext.session.prepared import PreparedFunction
from distir_ext.session.profile import Profile
from distir_ext.session.profiling import StepNames, profile_calls
from distir_ext.session.sharded_array import ShardedArray
from distir_ext.session.weights import load_weights
from distir_ext.signature.signature import Signature, parse_signature
from distir_ext.signature.sizes import size_of
from distir_ext.signature.specs import TensorSpec, unflatten
from distir_ext.text.display import Shown
from distir_ext.text.errors.spelling import counted
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.workers.base import Workers

_ON_GPUS = (
    ': those of Session(ccl="nccl") are on GPUs, on one host or several, and those of '
    'Session(ccl="mpi", device="cuda")'
)


class ModelFunction(Shown):
    """One function of a loaded executable. Calling it runs it on all workers."""

    def __init__(
        self,
        calls: FunctionCalls,
        step_names: Callable[[], StepNames] = dict,
        named_meshes: Sequence[NamedMesh] = (),
    ) -> None:
        self._calls = calls
        self._spec = calls.spec
        self._step_names = step_names
        self._named_meshes = named_meshes

    @short_tracebacks
    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Runs the function.

        Args:
            *inputs: Global arrays for the inputs, in order: NumPy, TVM, or anything with
                ``__dlpack__`` on the CPU; or results of functions, of this session or another one.
                For a shape a sequence of sizes, for a number (``R.Prim``) one of Python or NumPy.
            **named: Inputs by name, behind those in order.

        Returns:
            The global result, a :class:`ShardedArray`, whose shards stay with the workers; shapes
            and numbers as they are; nested tuples of them for a tuple.

        Raises:
            TypeError: the wrong number of inputs, an unknown name, or a wrong dtype.
            ValueError: a wrong shape, sizes that contradict each other, or an array on workers that
                are gone.
            WorkerError: a worker failed; the session is closed.
            RuntimeError: the session is closed, or an array was donated to an earlier call.
        """
        call = self._calls.prepare(self._calls.in_order(inputs, named))
        outcomes = self._calls.run(
            [call], [(index, 0) for index in range(self._spec.virtual_stages)]
        )
        return unflatten(self._spec.result, iter(self._calls.assemble(0, call, outcomes)))

    @short_tracebacks
    def prepare(self, *inputs: Any, **named: Any) -> PreparedFunction:
        """The function with these inputs, which are checked once, for calls that are repeated.

        Args:
            *inputs: As for a call. Arrays of the host are read again in each call. Arrays for
                inputs that are donated stay, so that each call has new memory for its results.
            **named: Inputs by name.

        Raises:
            ValueError, TypeError: As a call, of its inputs.
        """
        call = self._calls.prepare(self._calls.in_order(inputs, named), once=False)
        return PreparedFunction(self._calls, call)

    def pipeline(
        self,
        microbatches: int,
        *,
        schedule: str | None = None,
        batch_dims: BatchDims | None = None,
        result_dims: int | Sequence[int | None] | None = 0,
    ) -> Pipeline:
        """The function for batches of several microbatches, whose stages overlap.

        The executable is built for one microbatch, or for a symbolic batch. That the function
        treats the rows of a batch apart from each other is for the caller to know: a batch
        norm in training, for one, gives another result on microbatches.

        Args:
            microbatches: Into how many a batch is cut.
            schedule: ``"gpipe"``: a stage begins a microbatch as soon as it can; ``"1f1b"``: it
                does not run ahead; ``"interleaved"``: for functions whose devices have several
                stages each; see :func:`distir_ext.stages.schedule`. None: ``"interleaved"`` for
                these, ``"gpipe"`` for others.
            batch_dims: By name of an input the dimension along which it is cut; None if it is the
                same for all microbatches. An input that is not named is cut along dimension 0,
                unless it has the size of one microbatch there.
            result_dims: The dimension along which results are joined: for all tensors of the
                result, or one entry for each of its leaves. None: a tuple with a result per
                microbatch.

        Raises:
            ValueError: an unknown schedule, or one that the function is not built for; a number of
                microbatches that is not positive, or dims that do not fit the function.
        """
        return Pipeline(self._calls, microbatches, schedule, batch_dims, result_dims)

    @short_tracebacks
    def profile(self, *inputs: Any, repeat: int = 5, warmup: int = 1, **named: Any) -> Profile:
        """Calls the function and measures every kernel and collective on every worker.

        Of a collective, waiting for other workers is told apart from moving. Workers on GPUs finish
        each operator before the next one begins, so that nothing overlaps; workers on CPUs run as
        they do otherwise. Measured calls take some 0.2 microseconds per operator longer.

        Args:
            *inputs: As for a call.
            repeat: Number of calls that are measured.
            warmup: Number of calls before them, which are not measured.
            **named: Inputs by name.

        Returns:
            What was measured. Results of the function are dropped.

        Raises:
            ValueError: ``repeat`` is not positive, or ``warmup`` negative.
            TypeError: As for a call, as all else.
        """
        self._calls.workers.check_open()
        return profile_calls(
            self._calls,
            self._calls.in_order(inputs, named),
            repeat,
            warmup,
            self._step_names,
            MeshAxes(self._named_meshes),
        )

    def held_weights(self) -> dict[str, HeldArray]:
        """The function's weights as the workers hold them, by name.

        Raises:
            ValueError: a weight is not a tensor; names it.
        """
        spec, on_workers = self._spec, self._calls.held
        sizes = {name: size for name, (size, _) in on_workers.sizes.items()}
        found = {}
        for index, param in enumerate(spec.params[spec.num_input :], start=spec.num_input):
            if not isinstance(param.spec, TensorSpec):
                raise ValueError(f'weight "{param.name}" of "{spec.name}" is not a tensor')
            where = f'weight "{param.name}" of "{spec.name}"'
            shape = tuple(
                size for dim in param.spec.shape if (size := size_of(dim, sizes)) is not None
            )
            held = on_workers.weights[index]
            found[param.name] = HeldArray(param.spec.with_sizes(sizes, where), shape, held)
        return found

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return tuple(param.name for param in self._spec.inputs)

    def check_open(self) -> None:
        """Raises RuntimeError, with the reason, if the workers are gone."""
        self._calls.workers.check_open()

    def __repr__(self) -> str:
        return f"<ModelFunction {self._spec}>"


class Model(Shown):
    """An executable on the workers of a session; ``model["main"]`` is one of its functions.

    A model with one function can be called itself.

    Attributes:
        named_meshes: The meshes of the module that it was built from.
    """

    def __init__(
        self, functions: Mapping[str, ModelFunction], named_meshes: Sequence[NamedMesh] = ()
    ) -> None:
        self._functions = dict(functions)
        self.named_meshes = tuple(named_meshes)

    def __getitem__(self, name: str) -> ModelFunction:
        """A function by name.

        Args:
            name: A function of the module that was built, as ``"main"``.

        Raises:
            KeyError: there is none; names those there are.
        """
        if name not in self._functions:
            known = ", ".join(f'"{each}"' for each in self._functions)
            raise KeyError(f'the executable has no function "{name}"; it has {known}')
        return self._functions[name]

    @short_tracebacks
    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Runs the function of a model that has one; see :meth:`ModelFunction.__call__`.

        Raises:
            TypeError: the executable has several functions; names them.
        """
        if len(self._functions) != 1:
            known = ", ".join(f'model["{name}"]' for name in self._functions)
            raise TypeError(f"the executable has several functions; call one of them: {known}")
        (function,) = self._functions.values()
        return function(*inputs, **named)

    def weights(self) -> dict[str, ShardedArray]:
        """The weights of all functions where they are, on the workers, by name.

        Of a weight that ``annotate`` has cut into blocks it is these, each by its own name.
        :meth:`distir_ext.Session.load` takes them for another model, on another mesh, too, and
        :func:`distir_ext.save` as a state.

        Raises:
            ValueError: a weight is not a tensor.
            RuntimeError: the session is closed.
        """
        return {
            name: ShardedArray(self._workers, held.spec, held.shape, held.shards)
            for name, held in self._held_weights().items()
        }

    def save_shards(self, directory: str | os.PathLike[str]) -> None:
        """Writes the weights as the workers hold them, for ``Session.load(exe, params=directory)``.

        Each device's shards go to a safetensors file of its own, ``device-0.safetensors`` and so
        on; what several devices hold is written once. ``shards.json`` says what is where. Another
        sharding can be loaded from them, too.

        Args:
            directory: It is made if it does not exist; files of these names are replaced.

        Raises:
            OSError: a file cannot be written.
            ValueError: a weight is not a tensor, or has a dtype that safetensors files lack.
            RuntimeError: the session is closed.
        """
        write_shards(Path(directory), self._held_weights())

    def save_safetensors(
        self,
        directory: str | os.PathLike[str],
        *,
        rename: Callable[[str], str | None] | Mapping[str, str | None] | None = None,
        max_file_bytes: int = 5 * 10**9,
    ) -> None:
        """Writes whole weights as Hugging Face lays them out, for other programs.

        One weight after the other is gathered, and its blocks are joined: ``model.safetensors``, or
        ``model-00001-of-00003.safetensors`` and so on with ``model.safetensors.index.json``.

        Args:
            directory: It is made if it does not exist; files of these names are replaced.
            rename: From names of weights to those in the files: a function, or a dict in which
                names that stay may be left out. None for a weight leaves it out, such as a copy of
                another one that is tied to it.
            max_file_bytes: Bytes of weights in a file, unless one alone has more.

        Raises:
            OSError: a file cannot be written.
            ValueError: a weight is not a tensor, or has a dtype that safetensors files lack; two
                weights get the same name; ``max_file_bytes`` is not positive.
            RuntimeError: the session is closed.
        """
        if max_file_bytes < 1:
            raise ValueError(f"max_file_bytes is {max_file_bytes}, which is not positive")
        named: dict[str, ShardedArray | JoinedBlocks] = {}
        for name, weight in self._whole_weights().items():
            written = rename(name) if callable(rename) else (rename or {}).get(name, name)
            if written is None:
                continue
            if written in named:
                raise ValueError(f"two weights would be called {written!r}, one of them {name!r}")
            named[written] = weight
        write_checkpoint(Path(directory), named, max_file_bytes)

    def _whole_weights(self) -> dict[str, ShardedArray | JoinedBlocks]:
        """The weights under the names that users have for them: their blocks are joined."""
        held = self.weights()
        specs = [function._spec for function in self._functions.values()]
        fused = {block: each for spec in specs for each in spec.fused for block in each.blocks}
        found: dict[str, ShardedArray | JoinedBlocks] = {}
        for name, weight in held.items():
            of = fused.get(name)
            if of is None:
                found[name] = weight
            elif of.name not in held:
                found[of.name] = JoinedBlocks(tuple(held[each] for each in of.blocks), of.dim)
        return found

    @property
    def _workers(self) -> Workers:
        return next(iter(self._functions.values()))._calls.workers

    def _held_weights(self) -> dict[str, HeldArray]:
        """The weights of all functions, by name."""
        weights: dict[str, HeldArray] = {}
        for function in self._functions.values():
            function.check_open()
            for name, weight in function.held_weights().items():
                weights.setdefault(name, weight)
        return weights

    def __contains__(self, name: object) -> bool:
        return name in self._functions

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __repr__(self) -> str:
        # In the words of plans alone: nothing takes TVM's placement of an input, unlike a result's,
        # which may be compared with a type of the module.
        lines = ["<Model", *(f"  {function._spec}" for function in self._functions.values())]
        return "\n".join(lines) + ">"


def load_model(
    workers: Workers, origin: Origin, params: Params
) -> tuple[Model, list[FunctionCalls]]:
    """Hands an executable to all workers and cuts its weights; see ``Session.load``.

    Args:
        workers: The workers that get it.
        origin: The executable, and how its weights are called.
        params: Its weights.

    Returns:
        The model, and what its functions, and pipelines of them, are called by.
    """
    module = executable_module(origin.exe)
    signature = _read_signature(origin.exe, module)
    functions = _load(workers, origin, params, module, signature)
    calls = {name: FunctionCalls(function) for name, function in functions.items()}
    step_names = functools.cache(lambda: read_step_names(module))
    named = signature.named_meshes
    model = Model(
        {name: ModelFunction(each, step_names, named) for name, each in calls.items()}, named
    )
    return model, list(calls.values())


def origin_of(model: Model) -> Origin | None:
    """Returns the source of a model; None if the model has no functions."""
    return next((function._calls.origin for function in model._functions.values()), None)


def load_again(workers: Workers, origin: Origin, params: Params) -> dict[str, LoadedFunction]:
    """Loads a model on new workers: its functions by name, for :meth:`FunctionCalls.adopt`."""
    module = executable_module(origin.exe)
    return _load(workers, origin, params, module, _read_signature(origin.exe, module))


def _load(
    workers: Workers, origin: Origin, params: Params, module: Any, signature: Signature
) -> dict[str, LoadedFunction]:
    if signature.device_type != workers.device_type:
        raise ValueError(
            f"the executable is built for {_device_name(signature.device_type)}, the session's "
            f"workers are on {_device_name(workers.device_type)}"
            + (_ON_GPUS if signature.device_type == tvm_ffi.DLDeviceType.kDLCUDA else "")
        )
    missing = sorted(set(signature.device_ids) - set(workers.device_ids))
    if missing:
        raise ValueError(
            f"the executable needs {counted(len(signature.device_ids), 'device')} "
            f"{list(signature.device_ids)}, the session has "
            f"{counted(workers.num_workers, 'worker')} for "
            f"devices {list(workers.device_ids)}"
        )
    workers.open_groups(signature.partitions)
    weights, sizes = load_weights(workers, signature, params, origin.rename, origin.strict)
    machine = workers.load(origin.exe, module)
    return {
        name: LoadedFunction(origin, workers, spec, machine, weights[name], sizes[name])
        for name, spec in signature.functions.items()
    }


def _can_load(device_type: int) -> bool:
    """Returns whether this process can load code for a type of device."""
    name = f"device_api.{_device_name(device_type).lower()}"
    return tvm_ffi.get_global_func(name, allow_missing=True) is not None


def _device_name(device_type: int) -> str:
    """DLPack's name of a type of device: ``"CPU"``, ``"CUDA"``."""
    return tvm_ffi.DLDeviceType(device_type).name.removeprefix("kDL")


def _read_signature(exe: Any, module: Any) -> Signature:
    # A controller of workers on other hosts may lack the devices that they have.
    known = getattr(exe, "distir_signature", None)
    if known is not None:
        signature = parse_signature(known)
        if not _can_load(signature.device_type):
            return signature
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
