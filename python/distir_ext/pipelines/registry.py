"""Registers passes by name, so that pipelines can run them; users register passes of their own.

A pass of your own is a function of a module. Its keyword-only parameters are its options, whose
types are checked when a configuration states them::

    @dx.pipelines.register_pass("narrow_sums", phase="legalized")
    def narrow_sums(mod, matches, *, above: int = 1 << 20):
        \"\"\"Large sums are sent as bfloat16.\"\"\"
        ...
        matches.add()
        return mod

Installed packages name the modules that do so as entry points of the group ``distir_ext.passes``.
"""

from __future__ import annotations

import inspect
import time
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import tvm

from distir_ext.native import reports
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks

PHASES = ("annotated", "propagated", "legalized", "lowered", "runtime")
"""In order, as :func:`distir_ext.phase` names them."""

ENTRY_POINTS = "distir_ext.passes"

# Keys of every pass in a configuration, which no option may have as a name.
RESERVED = ("phase", "enabled", "target")

_REQUIRED = inspect.Parameter.empty

# Exceptions of registered code that stay what they are.
_KINDS = (ValueError, TypeError, RuntimeError)


@dataclass(frozen=True)
class Option:
    """An option of a pass."""

    name: str
    type: Any
    """The annotation, as ``int`` or ``str | Sequence[str]``."""

    default: Any = _REQUIRED
    """Value if none is stated."""

    @property
    def is_required(self) -> bool:
        """True if the option has to be set where its pass is enabled."""
        return self.default is _REQUIRED


@dataclass(frozen=True)
class RegisteredPass:
    """Pass and its settings in a configuration."""

    name: str
    phase: str
    """The phase of the module that it is given."""

    summary: str
    """One line."""

    options: Mapping[str, Option]
    make: Callable[..., tvm.transform.Pass] = field(repr=False)
    """The pass, given options."""

    source: str
    """The package or module that has it."""

    is_enabled: bool = True
    """True if the pass runs by default."""

    is_required: bool = False
    """True for a pass without which nothing runs."""

    target: str = ""
    """The kind of target that it is for; empty for all."""


class Matches:
    """Counts of a pass's matches, and of those that it skipped, with reasons."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}
        self.skipped: dict[str, dict[str, int]] = {}

    def add(self, what: str = "matches", count: int = 1) -> None:
        """Counts matches that were replaced.

        Args:
            what: Kind of match, for a pass that counts several.
            count: Number of matches.
        """
        self.done[what] = self.done.get(what, 0) + count

    def skip(self, why: str, what: str = "matches", count: int = 1) -> None:
        """Counts matches that were left unchanged.

        Args:
            why: The reason.
            what: Kind of match, as in :meth:`add`.
            count: Number of matches.
        """
        reasons = self.skipped.setdefault(what, {})
        reasons[why] = reasons.get(why, 0) + count


_registered: dict[str, RegisteredPass] = {}
_package: dict[str, RegisteredPass] = {}
_loaded_entry_points: set[str] = set()


@short_tracebacks
def register_pass(
    name: str, *, phase: str, enabled: bool = True, replace: bool = False
) -> Callable[[Any], Any]:
    """Registers a function of a module as a pass that pipelines may run.

    Args:
        name: Name in configurations.
        phase: Phase in which it runs: on an ``"annotated"`` module, before PropagateSharding; on a
            ``"propagated"`` one, before LegalizeRedistribute; on a ``"legalized"`` one, behind
            OptimizeCollectives; on the ``"lowered"`` programs of workers, before LowerCCL; or on
            ``"runtime"`` programs, before those of TVM.
        enabled: Whether it runs where a configuration does not say so.
        replace: Whether it takes the place of a pass that was registered under this name before, as
            when a notebook's cell runs again. Pipelines that were loaded before keep the old one.

    Returns:
        A decorator. The function is given the module and :class:`Matches` to count in, and its
        keyword-only parameters as options; it returns a module. Its docstring's first line is what
        ``distir passes`` says of it.

    Raises:
        ValueError: There is no such phase; the name is empty, that of a pass of this package, or,
            without ``replace``, that of another pass; an option is called as what is stated of
            every pass.
        TypeError: An option has no annotation.

    Example:
        >>> @register_pass("leave_it", phase="lowered")
        ... def leave_it(mod, matches, *, above: int = 8):
        ...     \"\"\"Changes nothing.\"\"\"
        ...     return mod
        >>> registered_passes()["leave_it"].options["above"].default
        8
        >>> unregister_pass("leave_it")
        True
    """
    if not name or not isinstance(name, str):
        raise ValueError(f"a pass needs a name, not {name!r}")
    if phase not in PHASES:
        raise ValueError(
            f"the pass {name!r} is for the phase {phase!r}, which there is not"
            f"{did_you_mean(str(phase), PHASES)}; there are {', '.join(PHASES)}"
        )
    if name in _package:
        raise ValueError(f"{name!r} is a pass of {_package[name].source}; choose another name")
    if name in _registered and not replace:
        raise ValueError(
            f"there is a pass {name!r} already, of {_registered[name].source}; replace=True "
            f"replaces it, and unregister_pass({name!r}) forgets it"
        )

    def register(function: Callable[..., tvm.IRModule]) -> Callable[..., tvm.IRModule]:
        found = _options_of(name, function)

        def make(**stated: Any) -> tvm.transform.Pass:
            return _as_pass(name, function, stated)

        lines = (inspect.getdoc(function) or "").splitlines()
        _registered[name] = RegisteredPass(
            name,
            phase,
            lines[0] if lines else "",
            found,
            make,
            function.__module__,
            is_enabled=enabled,
        )
        return function

    return register


@short_tracebacks
def unregister_pass(name: str) -> bool:
    """Forgets a pass that was registered; returns whether it was.

    Args:
        name: As :func:`register_pass` was given it.
    """
    return _registered.pop(name, None) is not None


@short_tracebacks
def registered_passes() -> dict[str, RegisteredPass]:
    """All passes by name: those of this package in order, then those of others."""
    return {**_package, **_registered}


def package_passes() -> dict[str, RegisteredPass]:
    """Returns the passes of this package, in the order in which they run."""
    return dict(_package)


def add_package_pass(each: RegisteredPass) -> None:
    """Registers a pass of this package; in the order in which they run."""
    _package[each.name] = each


def load_entry_points() -> None:
    """Imports the passes that installed packages register as entry points, once.

    Raises:
        ImportError: One of them cannot be imported; names package and entry point.
    """
    for each in metadata.entry_points(group=ENTRY_POINTS):
        if each.value in _loaded_entry_points:
            continue
        try:
            each.load()
        except Exception as error:
            package = each.dist.name if each.dist is not None else "a package"
            raise ImportError(
                f"the passes {each.name!r} of {package} ({each.value}) cannot be imported: {error}"
            ) from error
        _loaded_entry_points.add(each.value)


def options_of_factory(name: str, make: Callable[..., Any]) -> dict[str, Option]:
    """The parameters of a function that makes a pass, as options.

    Raises:
        TypeError: One has no annotation.
    """
    return _options(name, make, inspect.signature(make).parameters.values())


def _options_of(name: str, function: Callable[..., Any]) -> dict[str, Option]:
    parameters = inspect.signature(function).parameters.values()
    keywords = [each for each in parameters if each.kind is each.KEYWORD_ONLY]
    reserved = [each.name for each in keywords if each.name in RESERVED]
    if reserved:
        raise ValueError(
            f"the pass {name!r} has an option {reserved[0]!r}, which is stated of every pass"
        )
    return _options(name, function, keywords)


def _options(
    name: str, function: Callable[..., Any], parameters: Iterable[inspect.Parameter]
) -> dict[str, Option]:
    parameters = list(parameters)
    hints = typing.get_type_hints(function) if parameters else {}
    return {
        each.name: Option(each.name, _annotation(name, each.name, hints), each.default)
        for each in parameters
    }


def _annotation(name: str, option: str, hints: Mapping[str, Any]) -> Any:
    if option not in hints:
        raise TypeError(f"the option {option!r} of the pass {name!r} has no annotation")
    return hints[option]


def failure_of(what: str, error: Exception) -> Exception:
    """Returns the exception to raise where registered code fails.

    Args:
        what: Names it.
        error: The exception. TVM passes on texts only, of kinds that it knows; the text of a
            KeyError is the key alone.
    """
    kind = type(error) if type(error) in _KINDS else RuntimeError
    text = str(error) if kind is type(error) else f"{type(error).__name__}: {error}"
    return kind(f"{what}: {text}")


def _as_pass(
    name: str, function: Callable[..., tvm.IRModule], options: Mapping[str, Any]
) -> tvm.transform.Pass:
    """A pass of TVM, which instruments see, that reports what was counted."""

    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        matches, begin = Matches(), time.perf_counter()
        try:
            result = function(mod, matches, **options)
        except Exception as error:
            if type(error) in _KINDS and name in str(error):
                raise
            raise failure_of(f"the pass {name!r}", error) from error
        if not isinstance(result, tvm.IRModule):
            raise TypeError(
                f"the pass {name!r} returned a {type(result).__name__}, not an IRModule"
            )
        reports.record(name, matches.done, matches.skipped, time.perf_counter() - begin)
        return result

    return tvm.transform.module_pass(run, opt_level=0, name=name)
