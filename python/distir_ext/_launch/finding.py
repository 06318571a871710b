"""Which launcher has started this process, of all that the environment says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from distir_ext._launch.launchers import LEVELS, STATED, Launcher, Reader, WrongVariableError
from distir_ext._launch.place import Place


class LauncherError(RuntimeError):
    """The environment of this process contradicts itself."""


@dataclass(frozen=True)
class Findings:
    """What an environment says of who started this process.

    Attributes:
        place: Which copy it is, by the innermost launcher; None: no launcher started it.
        outer: What launchers say that this one was started by, such as Slurm of ``srun torchrun``.
        notes: What looks like a launcher and is none, in words: variables of a shell inside an
            allocation of Slurm, an indexed Job that does not state how many pods it has.
    """

    place: Place | None
    outer: tuple[Place, ...]
    notes: tuple[str, ...]


def find_place(environment: Mapping[str, str] | None = None) -> Place | None:
    """Which copy of a script this process is.

    Launchers are looked for from the inside: the variables ``DISTIR_EXT_RANK``,
    ``DISTIR_EXT_WORLD_SIZE`` and ``DISTIR_EXT_LEADER``, which anybody may set; torchrun; MPI (Open
    MPI; MPICH and what starts processes as it does); steps of Slurm; LeaderWorkerSet and indexed
    Jobs of Kubernetes. An indexed Job does not tell its pods how many they are:
    ``DISTIR_EXT_WORLD_SIZE`` has to.

    Args:
        environment: Variables by name; None: those of this process.

    Returns:
        The place; None if no launcher started this process.

    Raises:
        LauncherError: variables contradict each other, or are no numbers; all are in the message.
    """
    return look_around(environment).place


def look_around(environment: Mapping[str, str] | None = None) -> Findings:
    """What the environment says of who started this process, for people; see :func:`find_place`.

    Args:
        environment: Variables by name; None: those of this process.

    Raises:
        LauncherError: variables contradict each other, or are no numbers; all are in the message.
    """
    variables = os.environ if environment is None else environment
    found: list[Place] = []
    notes: list[str] = []
    for level in LEVELS:
        places = []
        for launcher in level:
            place, note = _read(launcher, variables)
            places += [place] if place else []
            notes += [note] if note else []
        _check_agreement(places)
        found += places[:1]
    return Findings(found[0] if found else None, tuple(found[1:]), tuple(notes))


def _read(launcher: Launcher, variables: Mapping[str, str]) -> tuple[Place | None, str | None]:
    """What a launcher says, or why what is there of it says nothing."""
    missing = [name for name in launcher.needed if not variables.get(name, "").strip()]
    telling = {
        name: value for name in launcher.telling if (value := variables.get(name, "").strip())
    }
    if missing:
        if not telling:
            return None, None
        if launcher is STATED:
            raise LauncherError(f"{_listed(telling)} is set, {', '.join(missing)} is not")
        return None, f"{_listed(telling)}, without {', '.join(missing)}: not {launcher.name}"
    reader = Reader(variables)
    try:
        place = launcher.read(reader)
    except WrongVariableError as error:
        raise LauncherError(f"{launcher.name}: {error}. Found: {_listed(reader.read)}") from None
    if place is None:
        return None, f"{_listed(telling)}: a shell or a batch script, not a copy that srun started"
    wrong = place.contradictions()
    if wrong:
        raise LauncherError(
            f"{launcher.name}: {'; '.join(wrong)}. Found: {_listed(place.variables)}"
        )
    return place, None


def _check_agreement(places: list[Place]) -> None:
    """Launchers that do not start each other have to say the same."""
    if len({(place.rank, place.size) for place in places}) > 1:
        said = "; ".join(
            f"{place.launcher}: rank {place.rank} of {place.size} ({_listed(place.variables)})"
            for place in places
        )
        raise LauncherError(f"launchers contradict each other. Found: {said}")


def _listed(variables: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in variables.items())
