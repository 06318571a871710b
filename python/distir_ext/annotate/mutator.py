"""Base class of mutators that annotate calls; it keeps the meshes and annotations.

A subclass says which arguments of a call, or its result, have which sharding:

    class TwoMeshes(dx.ShardingMutator):
        def __init__(self):
            super().__init__()
            self.meshes = itertools.cycle(meshes)

        def place(self, call):
            if self.callee(call) == "mlp":
                return {0: (next(self.meshes), (None, None))}

    mod = TwoMeshes()(mod)

which turns ``cls.mlp(x, A, B)`` into

    lv = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="R")
    lv0 = cls.mlp(lv, A, B)

No decorator is needed, and an instance is also a pass: ``Sequential([TwoMeshes(), ...])``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.relax.distributed import DeviceMesh, Placement

from distir_ext.annotate.annotations import Dims, MeshTable, function_to_annotate
from distir_ext.mesh.frameworks import read_sharding
from distir_ext.mesh.mesh import Mesh

Place: TypeAlias = tuple[Mesh, Dims | None] | tuple[DeviceMesh, Placement | str] | Any
"""A mesh with dims as in a plan; for one, TVM's own DeviceMesh with a Placement or its text. Or a
``jax.sharding.NamedSharding``, which has both."""

Site: TypeAlias = int | str | tuple[int, ...]
"""An argument's index; the path to a field of a tuple argument, as (1, 0); or "out"."""


class ShardingMutator(relax.PyExprMutator):
    """Inserts ``dist.annotate_sharding`` where :meth:`place` says so.

    Other ``visit_*`` methods of ``relax.PyExprMutator`` can be overridden as usual; whoever
    overrides ``visit_call_`` calls ``super().visit_call_(call)`` to keep the annotations.

    Args:
        mod: The module that :meth:`run` rewrites.
        func: The function that calling the object as a pass rewrites.
    """

    def __init__(self, mod: tvm.IRModule | None = None, func: str = "main") -> None:
        super().__init__(mod)
        self.mod = mod
        self.func = func
        self._meshes: MeshTable | None = None
        self._function = func
        self._error: Exception | None = None
        self._outer: Callable[[], Any] | None = None

    def place(self, call: relax.Call) -> Mapping[Site, Place] | None:
        """Returns the shardings to annotate at a call; subclasses override it.

        Args:
            call: A call of the function being rewritten, in program order, after its own arguments
                were rewritten.

        Returns:
            From argument index, path or "out" to mesh and dims; None for nothing.

        Raises:
            NotImplementedError: The subclass does not override it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define place(self, call)")

    @staticmethod
    def callee(call: relax.Call) -> str:
        """Returns the name of the callee: "mlp" for a function, "relax.matmul" for an operator.

        Args:
            call: A call of the function.
        """
        for field in ("name_hint", "global_symbol", "name"):
            name = getattr(call.op, field, None)
            if name is not None:
                return str(name)
        return str(call.op)

    def run(self, func: str | None = None) -> tvm.IRModule:
        """Rewrites a function of the module that the object was constructed with.

        Args:
            func: The function's name; by default the one given to the constructor.

        Returns:
            The new module, with every mesh that is used in its global infos.

        Raises:
            ValueError: There is no module or no such function; :meth:`place` names an argument
                that the call lacks, or a placement that does not fit the tensor (see
                :func:`distir_ext.annotate`).
            TypeError: :meth:`place` returns something of a wrong type.
        """
        if self.mod is None:
            raise ValueError(
                f"{type(self).__name__} was constructed without a module: "
                "pass one to the constructor, or call the object on one"
            )
        return self._rewrite(self.mod, self.func if func is None else func)

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrites function ``self.func`` of a module.

        Args:
            mod: The module, which stays as it is.

        Returns:
            The new module, as of :meth:`run`.

        Raises:
            ValueError, TypeError: As :meth:`run`.
        """
        return self._rewrite(mod, self.func)

    def __tvm_ffi_object__(self) -> tvm.transform.Pass:
        """The pass that TVM takes the object for."""
        return tvm.transform.module_pass(
            lambda mod, _: self(mod), opt_level=0, name=type(self).__name__
        )

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Visits the arguments, then annotates as :meth:`place` says.

        Args:
            call: A call of the function.

        Returns:
            The call with annotated arguments, or its annotated result.
        """
        call = self.visit_expr_post_order(call)
        if self._error is not None:
            return call
        try:
            return self._annotated(call)
        except Exception as error:
            # An exception that crosses TVM's visitor loses its type and leaves its builder in an
            # open scope, so it waits here for the end of the visit.
            self._error = error
            return call

    def _annotated(self, call: relax.Call) -> relax.Expr:
        places = self.place(call)
        if places is None:
            return call
        if not isinstance(places, Mapping):
            raise TypeError(
                f"{type(self).__name__}.place returned a {type(places).__name__} for a call to "
                f"{self.callee(call)}, not a mapping from arguments to placements"
            )
        args = list(call.args)
        for site, place in places.items():
            if site != "out":
                self._annotate_argument(call, args, site, place)
        result = relax.Call(call.op, args, call.attrs, call.ty_args, call.span)
        if "out" in places:
            entity = f"the result of a call to {self.callee(call)} in {self._function}"
            result = self._annotate(entity, self.builder_.normalize(result), places["out"])
        return result

    def _rewrite(self, mod: tvm.IRModule, func: str) -> tvm.IRModule:
        function = function_to_annotate(mod, func)
        self._meshes = MeshTable(mod)
        self._function = func
        self._error = None
        # TVM's decorator for mutators replaces a class by one that cannot be inherited from, so
        # what it does is done here per run: pair this object with a visitor on TVM's side.
        self.builder_ = relax.BlockBuilder(mod)
        metadata = relax.PyExprMutator._tvm_metadata
        visitor = metadata["cls"](
            *(getattr(self, field) for field in metadata["fields"]),
            *(self._override(method) for method in metadata["methods"]),
        )
        self._outer = lambda: visitor
        try:
            rewritten = self.visit_expr(function)
        finally:
            self._outer = None
        if self._error is not None:
            raise self._error
        result = self._meshes.store(mod.clone())
        result.update_func(result.get_global_var(func), rewritten)
        return result

    def _override(self, method: str) -> Callable[..., Any] | None:
        inherited = getattr(relax.PyExprMutator, method, None)
        return None if getattr(type(self), method, None) is inherited else getattr(self, method)

    def _annotate_argument(
        self, call: relax.Call, args: list[relax.Expr], site: Any, place: Any
    ) -> None:
        path = (site,) if isinstance(site, int) else site
        if not isinstance(path, tuple) or not path or not all(isinstance(i, int) for i in path):
            raise TypeError(
                f"{type(self).__name__}.place returned the key {site!r} for a call to "
                f"{self.callee(call)}, not an argument index, a path of indices, or 'out'"
            )
        entity = f"argument {'.'.join(map(str, path))} of a call to {self.callee(call)}"
        entity += f" in {self._function}"
        args[:] = self._replace(entity, args, path, place)

    def _replace(
        self, entity: str, values: list[relax.Expr], path: tuple[int, ...], place: Any
    ) -> list[relax.Expr]:
        index, rest = path[0], path[1:]
        if not 0 <= index < len(values):
            raise ValueError(f"{entity} does not exist: indices are 0 to {len(values) - 1}")
        value = values[index]
        if not rest:
            replaced = self._annotate(entity, value, place)
        elif isinstance(value, relax.Tuple):
            replaced = relax.Tuple(self._replace(entity, list(value.fields), rest, place))
        else:
            raise ValueError(f"{entity} does not exist: {value} is not a tuple of expressions")
        return [*values[:index], replaced, *values[index + 1 :]]

    def _annotate(self, entity: str, value: relax.Expr, place: Any) -> relax.Expr:
        assert self._meshes is not None
        place = read_sharding(place) or place
        if not isinstance(place, tuple) or len(place) != 2:
            raise TypeError(f"{entity}: {place!r} is not a pair of a mesh and dims")
        mesh, dims = place
        return self._meshes.mark(entity, mesh, dims, value.ty).on(value)
