"""Programs of JAX: StableHLO with Shardy's shardings, in and out.

``pip install 'distir-ext[jax]'`` has what this needs.
"""

from __future__ import annotations

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError(
        "dx.interop.jax reads and writes StableHLO by JAX's libraries, which are not installed: "
        "pip install 'distir-ext[jax]'"
    ) from error

from distir_ext.interop.jax.export.program import to_exported, to_stablehlo
from distir_ext.interop.jax.importer import from_exported, from_stablehlo, named_leaves

__all__ = ["from_exported", "from_stablehlo", "named_leaves", "to_exported", "to_stablehlo"]
