"""Loads users' models for verification: files, classes or configurations of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from distir_ext.annotate.annotations import relax_function
from distir_ext.annotate.patterns import annotate
from distir_ext.compile.entry import build
from distir_ext.hints.verification.models import MODELS, SIZES_OF_ALL, Program, computed
from distir_ext.mesh.mesh import Mesh
from distir_ext.session.session import Session
from distir_ext.structure.program import Program as Structure
from distir_ext.structure.program import sizes_of
from distir_ext.structure.sizes import bind_sizes, symbolic_sizes
from distir_ext.text.errors.spelling import did_you_mean

CONFIGURATION = "config.json"


def is_own(text: str) -> bool:
    """Returns whether an argument is a model of the user's, not the name of a tiny one."""
    return text not in MODELS and (Path(text).exists() or "." in text or text[:1].isupper())


def own_program(text: str, sizes: Mapping[str, int]) -> Program:
    """Returns a model of the user's with inputs and its unsharded results.

    Args:
        text: A file ``.pt2``, ``.onnx`` or ``.py`` (or ``file.py:Module``); a ``config.json`` of
            transformers, or its directory, for the class for causal language models; or a class of
            transformers, such as ``Phi3ForCausalLM``, with small sizes.
        sizes: Numbers for symbolic sizes.

    Raises:
        ValueError: There is no such model, it cannot be read, or has symbolic sizes.
        OSError: The file cannot be read.
        ImportError: The package that reads it is not installed.
    """
    path = Path(text)
    if path.name == CONFIGURATION or (path / CONFIGURATION).exists():
        return _of_configuration(path)
    if path.suffix == ".pt2":
        return _of_export(path)
    if text[:1].isupper() and text.isidentifier():
        return _of_class(text)
    if path.suffix == ".onnx":
        return _of_onnx(path, sizes)
    from distir_ext.interop._program_files import read_program

    return _of_module(text, read_program(text, annotated=False), None, sizes)


def _of_configuration(path: Path) -> Program:
    import transformers

    from distir_ext.hints.model_config import read_configuration

    config = read_configuration(path)
    known = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in known:
        raise ValueError(f"{path}: transformers has no causal language model of {type(config)}")
    return computed(known[type(config)], config)


def _of_class(name: str) -> Program:
    import transformers

    cls = getattr(transformers, name, None)
    if cls is None or not hasattr(cls, "config_class"):
        known = [each for each in dir(transformers) if each.endswith("ForCausalLM")]
        raise ValueError(f"transformers has no model {name!r}{did_you_mean(name, known)}")
    return computed(cls, small_configuration(cls.config_class))


def small_configuration(cls: Any, changes: Mapping[str, Any] | None = None) -> Any:
    """A configuration of transformers with small sizes, and layers of each kind that it has.

    Args:
        cls: The configuration's class.
        changes: Fields that are other than these.
    """
    changes = changes or {}
    usual = cls()
    stated = usual.to_dict()
    fields = {*stated, *cls.attribute_map}  # many have names of their own for hidden_size
    sizes = {name: size for name, size in SIZES_OF_ALL.items() if name in fields}
    depth = changes.get("num_hidden_layers", SIZES_OF_ALL["num_hidden_layers"])
    for name, kinds in stated.items():
        is_of_layers = isinstance(kinds, list) and len(kinds) == usual.num_hidden_layers
        if is_of_layers and all(isinstance(kind, str) for kind in kinds):
            sizes[name] = [*dict.fromkeys(kinds), *kinds][:depth]
    return cls(**{**sizes, **changes})


def _of_export(path: Path) -> Program:
    import torch

    from distir_ext.interop.torch import import_program

    try:
        program = torch.export.load(str(path))
    except Exception as error:
        raise ValueError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    imported = import_program(program)
    inputs = _inputs(str(path), imported.mod)
    with torch.no_grad():
        found = program.module()(*map(torch.from_numpy, inputs.values()))
    expected = (found[0] if isinstance(found, tuple | list) else found).numpy()
    weights = {name: np.asarray(value.numpy()) for name, value in imported.params.items()}
    return Program(imported.mod, inputs, weights, expected)


def _of_onnx(path: Path, sizes: Mapping[str, int]) -> Program:
    from distir_ext.interop.onnx import from_onnx

    imported = from_onnx(str(path), annotated=False)
    function = relax_function(imported.mod, "main")
    names = [str(each.name) for each in Structure(function).weights]
    values = [each.numpy() for each in imported.params.get("main", [])]
    return _of_module(str(path), imported.mod, dict(zip(names, values, strict=True)), sizes)


def _of_module(
    text: str, mod: tvm.IRModule, weights: Mapping[str, Any] | None, sizes: Mapping[str, int]
) -> Program:
    """Returns a module; its results on one device are the expected ones."""
    mod = bind_sizes(mod, dict(sizes))
    inputs = _inputs(text, mod)
    if weights is None:
        params = Structure(relax_function(mod, "main")).weights
        weights = {str(each.name): _random(each, 0.1) for each in params}
    exe = build(annotate(mod, Mesh((1,), ("one",)), {next(iter(inputs)): None}))
    with Session(1) as session:
        found = session.load(exe, params=weights)(**inputs)
    expected = (found[0] if isinstance(found, tuple | list) else found).numpy()
    return Program(mod, inputs, weights, expected)


def _inputs(text: str, mod: tvm.IRModule) -> dict[str, Any]:
    if lacking := [f"--size {name}=.." for name in symbolic_sizes(mod)]:
        raise ValueError(f"{text} has symbolic sizes; state {' '.join(lacking)}")
    function = relax_function(mod, "main")
    if function.attrs is None or "num_input" not in function.attrs:
        raise ValueError(f"{text}: main does not say which of its parameters are weights")
    return {str(each.name): _random(each, 1.0) for each in Structure(function).inputs}


def _random(param: Any, scale: float) -> Any:
    """An array for a parameter, the same each time."""
    shape, dtype = sizes_of(param) or (), str(param.ty.dtype)
    rng = np.random.default_rng(len(str(param.name)) + sum(shape))
    if "float" in dtype:
        return (scale * rng.standard_normal(shape)).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)
