"""Rendezvous of copies with rank 0 and its token, by environment variables."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.launch.test_places import INDEXED_JOB, LEADER_WORKER_SET, MPICH, STATED, STEP, TORCHRUN

import distir_ext as dx
from distir_ext.launch import introductions
from distir_ext.launch.finding import LauncherError, find_place
from distir_ext.launch.introductions import (
    introduce,
    open_listener,
    start_limit,
    stated_place,
)
from distir_ext.launch.place import Place
from distir_ext.wire.connections import listen
from distir_ext.wire.tokens import read_token

TOKEN = "of tests, and of no use elsewhere"
ON_ONE_NODE = {"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "0", "SLURM_LOCALID": "3"}
MPI_LIBRARY = Path(sys.prefix) / "lib" / "libmpi.so.12"


@pytest.fixture
def set_variables(clean_environment):
    def set_them(environment):
        for name, value in environment.items():
            clean_environment.setenv(name, value)
        return find_place()

    return set_them


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        (STATED, "10.0.0.2:7273"),
        (STATED | {"DISTIR_EXT_LEADER": "10.0.0.2:80"}, "10.0.0.2:80"),
        (STATED | {"DISTIR_EXT_LEADER": "fd00::2"}, "[fd00::2]:7273"),
        (STATED | {"DISTIR_EXT_PORT": "81"}, "10.0.0.2:81"),
        (STEP, "node001:21232"),
        (STEP | {"SLURM_STEP_ID": "2"}, "node001:21234"),
        (STEP | ON_ONE_NODE, "127.0.0.1:21232"),
        (LEADER_WORKER_SET, "llama-0.llama.default:7273"),
        (INDEXED_JOB, "train-0:7273"),
        (INDEXED_JOB | {"DISTIR_EXT_LEADER": "train-0.train"}, "train-0.train:7273"),
    ],
)
def test_where_copies_dial(set_variables, environment, address):
    place = set_variables(environment | {"DISTIR_EXT_TOKEN": TOKEN})
    introduction = introduce(place, None, None, 1.0)
    assert introduction.addresses == [address]
    assert introduction.token == TOKEN
    assert TOKEN not in repr(introduction)


@pytest.mark.parametrize("environment", [STATED, STEP, LEADER_WORKER_SET, INDEXED_JOB])
def test_without_a_token_the_error_says_how_to_make_one(set_variables, environment):
    place = set_variables(environment)
    with pytest.raises(LauncherError, match="make one with: distir token FILE") as failure:
        introduce(place, None, None, 1.0)
    assert "DISTIR_EXT_TOKEN_FILE" in str(failure.value)
    assert place.listed() in str(failure.value)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"DISTIR_EXT_TOKEN": "guess me"}, "can be guessed"),
        ({"DISTIR_EXT_TOKEN": TOKEN, "DISTIR_EXT_TOKEN_FILE": "file"}, "unset one of them"),
    ],
)
def test_tokens_of_no_use(set_variables, environment, words):
    place = set_variables(STATED | environment)
    with pytest.raises(ValueError, match=words):
        introduce(place, None, None, 1.0)


def test_a_file_of_a_token_in_the_environment(set_variables, tmp_path):
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(f"{TOKEN}\n")
    set_variables({"DISTIR_EXT_TOKEN_FILE": str(file)})
    assert read_token(None) == TOKEN.encode()
    file.chmod(0o644)
    with pytest.raises(ValueError, match="others than its owner"):
        read_token(None)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (STATED | {"DISTIR_EXT_LEADER": ""}, "state the host of rank 0 in DISTIR_EXT_LEADER"),
        (STATED | {"DISTIR_EXT_LEADER": "a b:c:d]"}, "is not an address"),
        (STATED | {"DISTIR_EXT_PORT": "70000"}, "DISTIR_EXT_PORT='70000' is no port"),
    ],
)
def test_rank_0_that_cannot_be_found(set_variables, environment, words):
    place = set_variables(environment | {"DISTIR_EXT_TOKEN": TOKEN})
    with pytest.raises(LauncherError, match=words) as failure:
        introduce(place, None, None, 1.0)
    assert "DISTIR_EXT_RANK=1" in str(failure.value)


def talking(monkeypatch, launcher):
    """Replaces a launcher's exchange, and returns the messages that rank 0 hands on."""
    said = []

    def hand_on(place, message, limit):
        said.extend([message] if message else [])
        return said[0]

    monkeypatch.setitem(introductions._HAND_ON, launcher, hand_on)
    return said


ON_ONE_HOST = TORCHRUN | {"LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8"}


@pytest.mark.parametrize("stated", [None, TOKEN])
@pytest.mark.parametrize("environment", [TORCHRUN, ON_ONE_HOST, MPICH])
def test_a_token_is_handed_on_between_hosts_only(set_variables, monkeypatch, environment, stated):
    place = set_variables(environment)
    said = talking(monkeypatch, place.launcher)
    with listen("127.0.0.1:0") as listener:
        first = introduce(place, listener, stated, 1.0)
        port = listener.getsockname()[1]
    other = introduce(place, None, stated, 1.0)
    assert (first.token, first.addresses) == (other.token, other.addresses)
    assert first.addresses == [f"127.0.0.1:{port}"]
    assert len(first.token) == 64 or first.token == stated
    is_handed_on = stated is None and environment is TORCHRUN
    assert (first.token.encode() in said[0]) == is_handed_on
    assert (first.file is None) == (stated is not None or environment is TORCHRUN)
    first.remove_file()
    assert first.file is None or not first.file.parent.exists()


def test_who_writes_to_the_store_gives_no_token(set_variables, monkeypatch, tmp_path):
    """Of one machine's users, each can connect to torchrun's store."""
    place = set_variables(ON_ONE_HOST)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said = talking(monkeypatch, "torchrun")
    with listen("127.0.0.1:0") as listener:
        made = introduce(place, listener, None, 1.0)
    address = made.addresses[0]
    elsewhere = tmp_path / "other" / "token"
    elsewhere.parent.mkdir(0o700)
    elsewhere.touch(0o600)
    elsewhere.write_text(TOKEN)
    above = made.file.parent / ".." / "other" / "token"
    for claim in ({"token": TOKEN}, {"file": str(elsewhere)}, {"file": str(above)}):
        said[:] = [json.dumps({"addresses": [address], **claim}).encode()]
        with pytest.raises(LauncherError, match=r"makes no sense|is no file that rank 0 has made"):
            introduce(place, None, None, 1.0)
    said[:] = [json.dumps({"addresses": [address], "file": str(made.file)}).encode()]
    assert introduce(place, None, None, 1.0).token == made.token
    made.file.parent.chmod(0o755)
    with pytest.raises(LauncherError, match="others than its owner may use"):
        introduce(place, None, None, 1.0)
    made.remove_file()
    with pytest.raises(LauncherError, match="the token of rank 0 cannot be read"):
        introduce(place, None, None, 1.0)


def test_rank_0_says_all_its_addresses(monkeypatch):
    place = Place("MPICH", 0, 8, local_size=4)
    with listen("0.0.0.0:0") as listener:
        addresses = introductions._reached_at(place, listener)
        port = listener.getsockname()[1]
    assert all(address.endswith(f":{port}") for address in addresses)
    assert not any(address.startswith("127.") for address in addresses)


@pytest.mark.parametrize("said", [b"", b"no JSON", b"[]", b'{"token": "x"}'])
def test_what_rank_0_says_makes_no_sense(set_variables, monkeypatch, said):
    place = set_variables(MPICH)
    monkeypatch.setitem(introductions._HAND_ON, "MPICH", lambda *arguments: said)
    with pytest.raises(LauncherError, match="To do without, state DISTIR_EXT_LEADER"):
        introduce(place, None, None, 1.0)


def test_torchrun_without_pytorch(set_variables, monkeypatch):
    place = set_variables(TORCHRUN)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    with pytest.raises(LauncherError, match="needs PyTorch, which cannot be imported"):
        introduce(place, None, None, 1.0)


@pytest.mark.large
@pytest.mark.parametrize(
    ("library", "words"),
    [
        ("/no/such/libmpi.so", "the library of MPI is not found; state its file in"),
        ("libc.so.6", "libc.so.6 is no library of MPI: it has no MPI_Initialized"),
        pytest.param(
            str(MPI_LIBRARY),
            "says rank 0 of 1: it is not the library of what has started this process",
            marks=pytest.mark.skipif(not MPI_LIBRARY.exists(), reason="MPICH is not installed"),
        ),
    ],
)
def test_a_wrong_library_of_mpi(set_variables, library, words):
    """In a process of its own, which MPI changes."""
    set_variables(
        {
            "DISTIR_EXT_MPI_LIBRARY": library,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
    )
    code = (
        "from distir_ext.launch import mpi, place\n"
        "try: mpi.hand_on(place.Place('Open MPI', 1, 2), None, 20)\n"
        "except mpi.MpiError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    assert words in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rank": 1}, "rank=1 and size=None: state both, or neither"),
        ({"size": 2}, "rank=None and size=2: state both, or neither"),
        ({"rank": 2, "size": 2}, "rank 2 is not one of 2 copies"),
        ({"rank": -1, "size": 2}, "rank -1 is not one of 2 copies"),
        ({"rank": 0, "size": 0}, "there are 0 copies"),
        ({"timeout": 0}, "timeout=0 is no number of seconds"),
        ({"timeout": float("nan")}, "timeout=nan is no number of seconds"),
        ({"rank": 1, "size": 2, "token": "guess me"}, "can be guessed"),
    ],
)
def test_arguments_of_no_use(clean_environment, arguments, words):
    with pytest.raises(ValueError, match=words):
        dx.Hosts.from_env(**arguments)


def test_hosts_have_one_token():
    with pytest.raises(ValueError, match="both a token and a file of one"):
        dx.Hosts(["10.0.0.2"], token=TOKEN, token_file="token")
    with pytest.raises(ValueError, match="the token of hosts can be guessed"):
        dx.Hosts(["10.0.0.2"], token="guess me")


def test_arguments_are_before_the_environment(set_variables):
    set_variables(TORCHRUN)
    place = stated_place(1, 2, "10.0.0.9")
    assert (place.rank, place.size, place.leader) == (1, 2, "10.0.0.9")
    assert introduce(place, None, TOKEN, 1.0).addresses == ["10.0.0.9:7273"]
    place = stated_place(None, None, "10.0.0.9")
    assert (place.launcher, place.rank, place.leader) == ("torchrun", 5, "10.0.0.9")


@pytest.mark.parametrize(("stated", "limit"), [("", 300), ("2.5", 2.5)])
def test_how_long_copies_wait(clean_environment, stated, limit):
    clean_environment.setenv("DISTIR_EXT_START_TIMEOUT", stated)
    assert start_limit(None) == limit
    assert start_limit(7) == 7
    clean_environment.setenv("DISTIR_EXT_START_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="DISTIR_EXT_START_TIMEOUT='soon' is no number"):
        start_limit(None)


@pytest.mark.parametrize(
    ("leader", "bound"),
    [("127.0.1.1", "127.0.1.1"), ("localhost", "127.0.0.1"), ("no-such-host.invalid", "0.0.0.0")],
)
def test_rank_0_listens_beyond_this_host_only_for_others(clean_environment, leader, bound):
    clean_environment.setenv("DISTIR_EXT_PORT", str(_free_port()))
    with open_listener(Place("tests", 0, 2, leader=leader)) as listener:
        assert listener.getsockname()[0] == bound


@pytest.mark.parametrize("descriptor", ["none", "999999"])
def test_a_socket_that_is_not_there(set_variables, descriptor):
    """As a process has it that rank 0 has started."""
    place = set_variables(STATED | {"DISTIR_EXT_RANK": "0", "DISTIR_EXT_LISTENER": descriptor})
    with pytest.raises(LauncherError, match=f"DISTIR_EXT_LISTENER={descriptor} is no socket"):
        open_listener(place)


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
