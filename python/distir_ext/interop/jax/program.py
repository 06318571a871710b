"""State of an import from StableHLO: functions that are written, and those still queued."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import relax, tirx

from distir_ext.annotate.annotations import MeshTable
from distir_ext.annotate.open_regions import Region
from distir_ext.interop.jax.known import relax_type, result_type
from distir_ext.interop.jax.sharding_groups import ShardingGroups
from distir_ext.interop.jax.shardings import Shardings
from distir_ext.interop.jax.sizes import Algebra
from distir_ext.interop.jax.stablehlo import Operation, UnsupportedError, where


class FunctionsSoFar(NamedTuple):
    """The functions of a program at some time, and its groups."""

    names: set[str]
    queued: int
    called: dict[Hashable, tvm.ir.GlobalVar]
    groups: ShardingGroups


@dataclass
class Program:
    """State that all functions of a module share.

    Attributes:
        functions: The functions of the StableHLO module by name.
        shardings: Its meshes.
        unroll_limit: Most iterations of a loop that are written one behind the other.
        algebra: Sizes of the program, and relations among them.
        groups: Values that are sharded alike.
    """

    functions: dict[str, Operation]
    shardings: Shardings
    unroll_limit: int
    algebra: Algebra = field(default_factory=Algebra)
    module: tvm.IRModule = field(default_factory=tvm.IRModule)
    builder: relax.BlockBuilder = field(default_factory=relax.BlockBuilder)
    problems: dict[tuple[str, str], None] = field(default_factory=dict)
    groups: ShardingGroups = field(default_factory=ShardingGroups)
    stand_ins: set[relax.Var] = field(default_factory=set)
    _queue: list[tuple[tvm.ir.GlobalVar, Callable[[], relax.Function]]] = field(
        default_factory=list
    )
    _called: dict[Hashable, tvm.ir.GlobalVar] = field(default_factory=dict)
    _names: set[str] = field(default_factory=lambda: {"main"})
    meshes: MeshTable = field(default_factory=lambda: MeshTable(tvm.IRModule()))

    def later(
        self,
        name: str,
        parameters: Sequence[relax.Type],
        result: relax.Type,
        write: Callable[[tvm.ir.GlobalVar], relax.Function],
    ) -> tvm.ir.GlobalVar:
        """Queues a private function to be written after the current one.

        Args:
            name: Its name, up to a number.
            parameters: The types of its parameters.
            result: The type of its result.
            write: Makes it, given its own name.
        """
        symbol = self._symbol(name, relax.FuncType(list(parameters), result))
        self._queue.append((symbol, lambda: write(symbol)))
        return symbol

    def _symbol(self, name: str, kind: relax.FuncType) -> tvm.ir.GlobalVar:
        unique, number = name, 0
        while unique in self._names:
            unique, number = f"{name}_{number}", number + 1
        self._names.add(unique)
        symbol = tvm.ir.GlobalVar(unique)
        relax.expr._update_type(symbol, kind)
        return symbol

    def add(self, name: str, function: relax.Function) -> tvm.ir.GlobalVar:
        """A private function that is written already.

        Args:
            name: Its name, up to a number.
            function: The function.
        """
        kind = relax.FuncType([each.ty for each in function.params], function.ret_ty)
        symbol = self._symbol(name, kind)
        self.module[symbol] = function
        return symbol

    def special(
        self, name: str, key: Hashable, write: Callable[[Operation], relax.Function]
    ) -> tvm.ir.GlobalVar:
        """The private function of a function of the module for sizes, which ``key`` tells apart.

        It is written at once: only then is the type of its result known.
        """
        if key not in self._called:
            self._called[key] = self.add(name, write(self.functions[name]))
        return self._called[key]

    def symbol_of(
        self, name: str, region: Region | None, write: Callable[[Operation], relax.Function]
    ) -> tvm.ir.GlobalVar:
        """The private function of a function of the module, which is written once per region."""
        key = name, region
        if key not in self._called:
            op = self.functions[name]
            kind = op.attributes["function_type"].value
            types = [relax_type(each) for each in kind.inputs]
            self._called[key] = self.later(
                name, types, result_type(list(kind.results)), lambda _: write(op)
            )
        return self._called[key]

    def kernel(self, name: str, function: tirx.PrimFunc) -> tvm.ir.GlobalVar:
        """A kernel, which equal ones share.

        Args:
            name: Its name, up to a number.
            function: The kernel.
        """
        key: Any = tvm_ffi.StructuralKey(function)  # type: ignore[call-arg]
        if key not in self._called:
            kind = relax.FuncType.opaque_func(ret=relax.ObjectType())
            symbol = self._symbol(name, kind)
            self.module[symbol] = function.with_attr("global_symbol", symbol.name_hint)
            self._called[key] = symbol
        return self._called[key]

    def functions_so_far(self) -> FunctionsSoFar:
        """Functions that are written or queued, and groups, for :meth:`forget_others`."""
        return FunctionsSoFar(
            set(self._names),
            len(self._queue),
            dict(self._called),
            self.groups.copy(),
        )

    def forget_others(self, kept: FunctionsSoFar) -> None:
        """Forgets functions that only what is given up calls, and groups that it is in."""
        for symbol in self.module.get_global_vars():
            if symbol.name_hint not in kept.names:
                del self.module[symbol]
        del self._queue[kept.queued :]
        self._names, self._called = kept.names, kept.called
        self.groups = kept.groups

    def write_all(self) -> None:
        """Writes all queued functions, and those that they queue."""
        while self._queue:
            symbol, write = self._queue.pop()
            try:
                self.module[symbol] = write()
            except UnsupportedError as error:
                self.problems[f"{symbol.name_hint} {error}", ""] = None

    def problem(self, op: Operation, reason: str) -> None:
        """Records an operation that has no translation."""
        self.problems[(reason, where(op))] = None
