"""Variables and stores that say anything: each is one error, which names what is wrong."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import types

import pytest
from tests.launch import test_places as environments
from tests.launch.test_introductions import TOKEN

from distir_ext.launch import introductions
from distir_ext.launch.finding import LauncherError, find_place
from distir_ext.launch.introductions import introduce, open_listener, start_limit
from distir_ext.launch.place import Place
from distir_ext.text.printable import printable_line
from distir_ext.wire.connections import listen

# Of each launcher the variables that it sets, and by which of them this copy is rank 0.
LAUNCHERS = {
    "DISTIR_EXT_RANK": environments.STATED,
    "RANK": environments.TORCHRUN,
    "OMPI_COMM_WORLD_RANK": environments.OPEN_MPI,
    "PMI_RANK": environments.MPICH,
    "SLURM_PROCID": environments.STEP,
    "LWS_WORKER_INDEX": environments.LEADER_WORKER_SET,
    "JOB_COMPLETION_INDEX": environments.INDEXED_JOB,
}
MORE = (
    *("DISTIR_EXT_PORT", "DISTIR_EXT_LISTENER", "DISTIR_EXT_START_TIMEOUT", "DISTIR_EXT_LEADER"),
    *("TORCHELASTIC_RESTART_COUNT", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
)
VALUES = (
    *("abc", "\N{SUPERSCRIPT TWO}", "9" * 20, "9" * 18, "-1", "1.5", "1e3", "0x10", "1_0", "+1"),
    *("\x1b[2J\nrank 0", "a" * 300, "..", "\udcff", "\N{RIGHT-TO-LEFT OVERRIDE}", "nan", "[", "0"),
)
SAID = json.dumps({"addresses": ["127.0.0.1:1"], "token": TOKEN}).encode()


@pytest.fixture
def without_network(clean_environment):
    """Launchers' libraries that answer at once, and names that nobody has."""
    look_up = socket.getaddrinfo

    def look(host, *arguments, **options):
        if host and not host[0].isdigit() and ".." not in host and len(host) < 64:
            raise socket.gaierror("no such name")
        return look_up(host, *arguments, **options)

    class Store:
        def __init__(self, host, port, **options):
            assert type(port) is int

        def set(self, key, value):
            pass

        def get(self, key):
            return SAID

    clean_environment.setattr(socket, "getaddrinfo", look)
    store = types.SimpleNamespace(TCPStore=Store)
    clean_environment.setitem(sys.modules, "torch.distributed", store)
    for name in ("Open MPI", "MPICH"):
        clean_environment.setitem(introductions._HAND_ON, name, lambda *_: SAID)
    return clean_environment


def begin():
    """Runs the start of a copy up to its connection to rank 0."""
    place = find_place()
    start_limit(None)
    if place is not None and place.rank == 0:
        open_listener(place).close()
    elif place is not None:
        introduce(place, None, None, 0.1)


@pytest.mark.every_case
@pytest.mark.parametrize("rank", LAUNCHERS)
def test_every_variable_of_every_launcher(without_network, rank):
    """Whatever one says, it is taken, or it is a LauncherError that names variable and value."""
    variables = dict.fromkeys([*LAUNCHERS[rank], *MORE])
    refused = 0
    pod = {"LWS_WORKER_INDEX": "llama-0"}.get(rank, "train-0")
    for stated in (LAUNCHERS[rank], LAUNCHERS[rank] | {rank: "0", "HOSTNAME": pod}):
        for name in variables:
            for value in VALUES:
                for each in variables:
                    without_network.delenv(each, raising=False)
                full = {"DISTIR_EXT_TOKEN": TOKEN, "DISTIR_EXT_PORT": "7299", **stated}
                for each, text in {**full, name: value}.items():
                    without_network.setenv(each, text)
                try:
                    begin()
                except LauncherError as error:
                    refused += 1
                    text = str(error)
                    assert text == printable_line(text), (name, value)
                    assert name in text, (name, value, text)
                    assert printable_line(value) in text, (name, value, text)
    assert refused > 30


@pytest.mark.parametrize(
    "said",
    [
        b"[" * 60000,
        b"[" * 200000,
        json.dumps({"addresses": ["\x1b[2J"]}).encode(),
        json.dumps({"addresses": []}).encode(),
        json.dumps({"addresses": ["h"] * 5000}).encode(),
        json.dumps({"addresses": [{}], "token": TOKEN}).encode(),
        json.dumps({"addresses": ["h"], "token": "\ud800" * 60}).encode(),
        json.dumps({"addresses": ["h"], "token": [TOKEN]}).encode(),
        json.dumps({"addresses": ["h"], "token": "guess"}).encode(),
        json.dumps({"addresses": ["h"], "\x1b[2J": "\x1b[2J"}).encode(),
        b'{"addresses": ["h"], "token": ' + b"9" * 60000 + b"}",
        b"\x1b[2J\xff",
        b"\0" * 10**7,
    ],
)
@pytest.mark.every_case
def test_what_a_stranger_writes_at_the_store(clean_environment, said):
    clean_environment.setitem(introductions._HAND_ON, "torchrun", lambda *_: said)
    for place in (Place("torchrun", 1, 2), Place("torchrun", 1, 2, local_size=2)):
        with pytest.raises(LauncherError) as failure:
            introduce(place, None, None, 1.0)
        text = str(failure.value)
        assert text == printable_line(text)
        assert len(text) < 2000


def test_paths_that_a_stranger_writes(clean_environment, tmp_path):
    clean_environment.setattr(tempfile, "tempdir", str(tmp_path))
    pipe = tmp_path / "distir_ext-a" / "token"
    pipe.parent.mkdir(0o700)
    os.mkfifo(pipe, 0o600)
    for path in ("a\0b", "\x1b[2J", "/" * 5000, "x" * 5000, str(pipe), "\ud800"):
        said = json.dumps({"addresses": ["h"], "file": path}).encode()
        clean_environment.setitem(introductions._HAND_ON, "torchrun", lambda *_, said=said: said)
        with pytest.raises(LauncherError) as failure:
            introduce(Place("torchrun", 1, 2, local_size=2), None, None, 1.0)
        assert str(failure.value) == printable_line(str(failure.value))


def test_a_port_that_is_taken(clean_environment):
    with listen("127.0.0.1:0") as taken:
        clean_environment.setenv("DISTIR_EXT_PORT", str(taken.getsockname()[1]))
        variables = {"DISTIR_EXT_RANK": "0"}
        place = Place("DISTIR_EXT_RANK", 0, 2, leader="127.0.0.1", variables=variables)
        with pytest.raises(LauncherError, match="Address already in use") as failure:
            open_listener(place)
    for words in ("has inherited DISTIR_EXT_RANK", "DISTIR_EXT_PORT states", "DISTIR_EXT_RANK=0"):
        assert words in str(failure.value)


@pytest.mark.large
def test_a_start_that_a_signal_ends_leaves_no_token(tmp_path):
    """Rank 0 waits for another copy, which never comes."""
    script = (
        "import signal\n"
        "from distir_ext.launch import introductions\n"
        "from distir_ext.launch.place import Place\n"
        "from distir_ext.workers.hosts.copies import join\n"
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "def hand_on(place, message, limit):\n"
        "    print('made', flush=True)\n"
        "    return message\n"
        "introductions._HAND_ON['torchrun'] = hand_on\n"
        "join(Place('torchrun', 0, 2, local_size=2, leader='127.0.0.1'), None, 100.0)\n"
    )
    variables = {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    clean = {each: value for each, value in os.environ.items() if "TOKEN" not in each}
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=clean | variables, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "made\n"
    assert [file.name for file in tmp_path.glob("distir_ext-*/*")] == ["token"]
    process.terminate()
    assert process.wait(30) == -signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
