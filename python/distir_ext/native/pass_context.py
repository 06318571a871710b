"""Copies TVM's current pass context with changes, for which TVM 0.27 has no function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm


def pass_context(
    *, disabled: Sequence[str] = (), instruments: Sequence[Any] = ()
) -> tvm.transform.PassContext:
    """The current context with further disabled passes and instruments."""
    current = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        opt_level=current.opt_level,
        required_pass=list(current.required_pass),
        disabled_pass=[*current.disabled_pass, *disabled],
        instruments=[*current.instruments, *instruments],
        config=dict(current.config),
    )


def uninstrumented() -> tvm.transform.PassContext:
    """The current context without instruments: for what users did not ask to run."""
    current = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        opt_level=current.opt_level,
        required_pass=list(current.required_pass),
        disabled_pass=list(current.disabled_pass),
        config=dict(current.config),
    )
