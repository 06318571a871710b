"""Result of ``partition``: a torch model as an executable, with its weights, mesh and plan.

``load`` hands the executable to a session and cuts the weights for its workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import tvm

from distir_ext.mesh.mesh import Mesh
from distir_ext.params.matching import Params, Rename, renamed_to
from distir_ext.session.model import Model
from distir_ext.session.session import Session


@dataclass(frozen=True, repr=False)
class Partitioned:
    """A model that is built for the devices of a mesh."""

    exe: Any
    """The executable, as :func:`distir_ext.build` returns it."""

    mod: tvm.IRModule
    """The annotated module that it was built from."""

    mesh: Mesh
    """The devices."""

    params: dict[str, torch.Tensor]
    """The model's parameters, by their names in the module."""

    names: dict[str, str]
    """From names of parameters in the module to the model's, with dots."""

    plan: dict[str, Any]
    """Annotations, as :func:`distir_ext.annotate` takes them."""

    notes: tuple[str, ...]
    """One line for each tensor that was sharded or not, with the reason."""

    renamed: dict[str, tuple[str, ...]]
    """From names in the model's ``state_dict`` to those of parameters in the module: several if
    they are tied, none for buffers, which are constants of the module."""

    def load(
        self,
        session: Session,
        params: Params = None,
        *,
        rename: Rename = None,
        strict: bool = True,
    ) -> Model:
        """Hands the executable to the workers of a session, and cuts the weights for them.

        Args:
            session: Has the devices of the mesh.
            params: Other weights than the model's own: a ``state_dict``, or the path of a file or
                directory of safetensors that has what the ``state_dict`` has; each worker reads
                its part.
            rename: From names in ``params`` to those in the model's ``state_dict``: a function, or
                a dict in which names that stay may be left out.
            strict: Whether values that the model has no weight for are an error.

        Returns:
            The model, which is called with tensors; ``torch.from_dlpack`` takes what it returns.

        Raises:
            TypeError: ``rename`` is given without ``params``.
            ValueError: As :meth:`distir_ext.Session.load` does, and all else that it raises.
        """
        if params is None:
            if rename is not None:
                raise TypeError("rename= is of the names in params=, which was not given")
            return session.load(self.exe, params=self.params)
        return session.load(self.exe, params=params, rename=self._renaming(rename), strict=strict)

    def _renaming(self, rename: Rename) -> Callable[[str], tuple[str, ...]]:
        """Returns the map from names in files to names of parameters in the module."""

        def renamed(name: str) -> tuple[str, ...]:
            found: list[str] = []
            for each in renamed_to(rename, name):
                found += self.renamed.get(each, (each,))
            return tuple(found)

        return renamed

    def __repr__(self) -> str:
        sharded = sum(any(dims or ()) for name, dims in self.plan.items() if name in self.params)
        return f"<Partitioned on {self.mesh!r}: {sharded} of {len(self.params)} parameters sharded>"
