"""Results that stay on the workers because they are neither tensors nor shapes, as TVM's caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distir_ext.workers.base import Workers


class WorkerValue:
    """Values of workers that are neither tensors nor shapes, such as a cache of TVM.

    It can be passed to functions of the same session that take such a value. Its type does not say
    how tensors in it are sharded: functions that share a cache have to agree.

    Example::

        cache = model["create"]()
        model["append"](cache, x)
    """

    def __init__(self, workers: Workers, values: Mapping[int, Any]) -> None:
        self._workers = workers
        self._values = values

    def values_for(self, workers: Workers, where: str) -> Mapping[int, Any]:
        """Returns the values by device id.

        Args:
            workers: The workers of the session that is to use the value.
            where: Name of the value in the call, for errors.

        Raises:
            ValueError: other workers hold it; names ``where``.
        """
        if workers is not self._workers:
            raise ValueError(
                f"{where} is on the workers of another session, or of this one "
                "before it was restarted"
            )
        return self._values

    def __repr__(self) -> str:
        return f"<WorkerValue on devices {sorted(self._values)}>"
