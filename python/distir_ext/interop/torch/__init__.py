"""Exports models of PyTorch and transformers, shards them by PyTorch's plans, and builds them.

``pip install 'distir-ext[torch]'`` has what this needs; ``docs/interop/torch.md`` is the guide.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "dx.interop.torch exports models by PyTorch, which is not installed: "
        "pip install 'distir-ext[torch]'"
    ) from error

from distir_ext.interop.torch.generation.folders import FolderModel, model_of_folder
from distir_ext.interop.torch.generation.generator import Generator
from distir_ext.interop.torch.generation.programs import PartitionedGenerator
from distir_ext.interop.torch.generation.report import GenerationReport
from distir_ext.interop.torch.generation.settings import Generation
from distir_ext.interop.torch.importer import Imported, import_model, import_program
from distir_ext.interop.torch.partition import partition
from distir_ext.interop.torch.partitioned import Partitioned

__all__ = [
    "FolderModel",
    "Generation",
    "GenerationReport",
    "Generator",
    "Imported",
    "Partitioned",
    "PartitionedGenerator",
    "import_model",
    "import_program",
    "model_of_folder",
    "partition",
]
