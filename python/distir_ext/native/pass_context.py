"""The current pass context of TVM with something more, which TVM 0.27 cannot derive by itself."""

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
