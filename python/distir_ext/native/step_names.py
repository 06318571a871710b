"""Reads the variable names that ``dx.build`` stored in an executable, in the order of a run."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

import tvm_ffi

# The function of an executable that returns them (``src/analysis/step_names.h``).
STEP_NAMES = "distir_step_names"

_SIZES = re.compile(r"shape_func\d*")
_IN_PLACE = re.compile(r"(.+)_in_place(?:_\d+)?")  # of a kernel of the list (WriteInPlace)
_WITH_SIZES = "vm.builtin.call_tir_dyn"  # a kernel that gets symbolic sizes, too


class StepCursor:
    """Follows one run of a function."""

    def __init__(self, function: str, rows: Sequence[Any]) -> None:
        self.function = function
        self._rows = deque(rows)
        self._left = Counter(str(row[0]) for row in rows)

    def name_of(self, callee: str) -> tuple[str, str]:
        """The variable that the next call of a function gives, and the function.

        A call that is not written down has no variable but the function's name; where it computes
        sizes, which TVM adds behind all that is written down, the variable is empty.
        """
        if callee == _WITH_SIZES:
            if not self._rows or not self._rows[0][0]:
                return callee, callee
            callee = str(self._rows[0][0])
        if not self._left[callee] and (in_place := _IN_PLACE.fullmatch(callee)):
            callee = in_place[1] if self._left[in_place[1]] else callee
        if not self._left[callee]:
            return "" if _SIZES.fullmatch(callee) else callee, callee
        while self._rows and self._rows[0][0]:
            row = self._pop()
            if row[0] == callee:
                return str(row[1]), callee
        return callee, callee

    def take_branch(self, condition: int) -> None:
        """Goes on in the side of the next branch that is taken."""
        while self._rows and self._rows[0][0]:
            self._pop()
        if not self._rows:
            return
        _, _, on_true, on_false = self._pop()
        side = on_true if condition else on_false
        self._rows.extendleft(reversed(side))
        self._left.update(str(row[0]) for row in side)

    def _pop(self) -> Any:
        row = self._rows.popleft()
        self._left[str(row[0])] -= 1
        return row


def read_step_names(module: Any) -> Mapping[str, Sequence[Any]]:
    """Reads the step names of an executable; empty if this process cannot load its device code.

    Args:
        module: The executable's module.
    """
    try:
        machine = tvm_ffi.get_global_func("distir.runtime.load_virtual_machine")(module, None)
    except RuntimeError:
        return {}
    if not machine.implements_function(STEP_NAMES):
        return {}
    found: Mapping[str, Sequence[Any]] = json.loads(str(machine[STEP_NAMES]()))
    return found
