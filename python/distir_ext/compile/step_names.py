"""Stores the variable names of a program in the executable, so that profiles can show them."""

from __future__ import annotations

import json
from typing import Any

import tvm
import tvm_ffi

from distir_ext.native.step_names import STEP_NAMES
from distir_ext.native.text_function import with_text_function


def name_steps() -> tvm.transform.Pass:
    """Adds a function that returns the names, as JSON (``src/analysis/step_names.h``)."""
    names_of = tvm_ffi.get_global_func("distir.analysis.StepNames")

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        names = {str(name): _plain(rows) for name, rows in names_of(mod).items()}
        return with_text_function(mod, STEP_NAMES, json.dumps(names, separators=(",", ":")))

    return tvm.transform.module_pass(apply, opt_level=0, name="NameSteps")


def _plain(rows: Any) -> list[Any]:
    return [str(each) if isinstance(each, str) else _plain(each) for each in rows]
