"""Finds the launcher that has started this process, from environment variables."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distir_ext.launch.launchers import LEVELS, STATED, Launcher, Reader, WrongValueError
from distir_ext.launch.place import Place, listed


class LauncherError(RuntimeError):
    """The environment of this process contradicts itself, or copies do not meet."""


class WrongVariableError(LauncherError, ValueError):
    """A variable of the environment has a value that it cannot have; both are in the message."""


@contextlib.contextmanager
def read_variables(place: Place) -> Iterator[Reader]:
    """Reads more variables than those that say the place of a copy.

    Args:
        place: The place of this process, for messages.

    Raises:
        WrongVariableError: a variable has a value that it cannot have.
    """
    reader = Reader(os.environ, dict(place.variables))
    with _wrong_is_an_error(str(place), reader):
        yield reader


@contextlib.contextmanager
def _wrong_is_an_error(launcher: str, reader: Reader) -> Iterator[None]:
    try:
        yield
    except WrongValueError as error:
        raise WrongVariableError(f"{launcher}: {error}. Found: {listed(reader.read)}") from None


@dataclass(frozen=True)
class Findings:
    """Launchers that an environment names.

    Attributes:
        place: Rank and size by the innermost launcher; None if no launcher started the process.
        outer: Places by the launchers around that one, such as Slurm of ``srun torchrun``.
        notes: Variables that look like a launcher's and are not, in words: of a shell inside an
            allocation of Slurm, an indexed Job that does not state how many pods it has.
    """

    place: Place | None
    outer: tuple[Place, ...]
    notes: tuple[str, ...]


def find_place(environment: Mapping[str, str] | None = None) -> Place | None:
    """Finds the rank of this process, and the number of copies of its script.

    The innermost launcher counts, in this order: the variables ``DISTIR_EXT_RANK``,
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
    """Finds all launchers in the environment, for display; see :func:`find_place`.

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
    """Reads a launcher's variables: the place of this process, or a note why they state none."""
    missing = [name for name in launcher.needed if not variables.get(name, "").strip()]
    telling = {
        name: value for name in launcher.telling if (value := variables.get(name, "").strip())
    }
    if missing:
        if not telling:
            return None, None
        if launcher is STATED:
            raise LauncherError(f"{listed(telling)} is set, {', '.join(missing)} is not")
        return None, f"{listed(telling)}, without {', '.join(missing)}: not {launcher.name}"
    reader = Reader(variables)
    with _wrong_is_an_error(launcher.name, reader):
        place = launcher.read(reader)
    if place is None:
        return None, f"{listed(telling)}: a shell or a batch script, not a copy that srun started"
    wrong = place.contradictions()
    if wrong:
        raise LauncherError(
            f"{launcher.name}: {'; '.join(wrong)}. Found: {listed(place.variables)}"
        )
    return place, None


def _check_agreement(places: list[Place]) -> None:
    """Launchers that do not start each other have to say the same."""
    if len({(place.rank, place.size) for place in places}) > 1:
        said = "; ".join(
            f"{place.launcher}: rank {place.rank} of {place.size} ({listed(place.variables)})"
            for place in places
        )
        raise LauncherError(f"launchers contradict each other. Found: {said}")
