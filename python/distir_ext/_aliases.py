"""Keeps modules importable under the names of the previous release; the next one drops them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType

_PACKAGE = "distir_ext."
# By the names of old, below the package.
_NEW = {
    "_analysis": "analysis",
    "_analysis.profile": "session.profile",
    "_annotate": "annotate",
    "_annotate.dims": "mesh.dims",
    "_meshes": "mesh",
    "_meshes.mesh": "mesh.mesh",
    "_meshes.sharding": "signature.sharding",
    "analysis.redistributions": "reshards",
    "analysis.redistributions.redistribution": "analysis.redistribution",
    "analysis.redistributions.reshards_result": "reshards.reshards_result",
    "annotations": "annotate.annotations",
    "building": "compile.building",
    "cluster": "mesh.cluster",
    "collective_times": "analysis.measured.collective_times",
    "collectives": "annotate.collectives",
    "conformance": "testing.conformance",
    "constrain": "annotate.constrain",
    "dump": "passes.dump",
    "fused_weights": "annotate.fused_weights",
    "lowering": "pipelines.lowering",
    "manual": "annotate.manual",
    "measurement": "analysis.measured.measurement",
    "mutator": "annotate.mutator",
    "notation": "mesh.notation",
    "pass_checks": "passes.pass_checks",
    "pictures": "views.visualize",
    "printing": "explain.printing",
    "provenance": "explain.provenance",
    "regions": "annotate.regions",
    "reports": "native.reports",
    "rules": "explain.rules",
    "saving": "saved.saving",
    "stages": "session.stages",
    "summary": "explain.summary",
    "transform": "passes.transform",
    "user_rules": "explain.user_rules",
    "variables": "explain.variables",
}


class _Moved(MetaPathFinder, InspectLoader):
    """Finds a module under its old name: it is the same object as under the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        known = fullname.startswith(_PACKAGE) and fullname[len(_PACKAGE) :] in _NEW
        return ModuleSpec(fullname, self) if known else None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        sys.modules[name] = importlib.import_module(_new_name(name))

    def get_code(self, fullname: str) -> CodeType | None:
        """Serves ``python -m distir_ext.conformance``."""
        spec = find_spec(_new_name(fullname))
        assert spec is not None
        assert isinstance(spec.loader, InspectLoader)
        return spec.loader.get_code(spec.name)

    def get_source(self, fullname: str) -> str | None:
        """Serves tracebacks."""
        spec = find_spec(_new_name(fullname))
        assert spec is not None
        assert isinstance(spec.loader, InspectLoader)
        return spec.loader.get_source(spec.name)


def install() -> None:
    """Makes the old names importable, those of modules that are imported already at once."""
    package = sys.modules[__package__]
    for old, new in _NEW.items():
        module = sys.modules.get(_PACKAGE + new)
        if module is not None:
            sys.modules.setdefault(_PACKAGE + old, module)
            if "." not in old and not old.startswith("_") and not hasattr(package, old):
                setattr(package, old, module)
    if not any(isinstance(each, _Moved) for each in sys.meta_path):
        sys.meta_path.append(_Moved())


def _new_name(name: str) -> str:
    return _PACKAGE + _NEW[name[len(_PACKAGE) :]]
