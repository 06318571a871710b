"""The numbers of docs/security.md are those of the code, and what it says of them holds."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import socket
import threading
import time
from pathlib import Path

import pytest
from tests.runtime.connection.listeners import TOKEN
from tests.saved.test_saving import annotated

from distir_ext import hints, pipelines
from distir_ext.launch import introductions
from distir_ext.params.memory_file import MemoryFile
from distir_ext.saved import module_text, saving, state
from distir_ext.text import printable
from distir_ext.text.files import json_file, regular_file, yaml_text
from distir_ext.wire import channel, handshake, strangers, tokens
from distir_ext.wire.byte_stream import Stream
from distir_ext.workers import host_processes
from distir_ext.workers.hosts.host_agent import HostAgent

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
BEFORE_THE_PROOF = (
    handshake._GREETING.size + handshake._HELLO.size + handshake._LONGEST_ADDRESS
)  # bytes


@pytest.mark.parametrize(
    "sentence",
    [
        f"what is read is at most {BEFORE_THE_PROOF} bytes of fixed layout",
        f"one deadline ({handshake.HANDSHAKE_LIMIT:g} s) holds for the whole handshake",
        f"At most {strangers.MOST_STRANGERS} strangers (a quarter of the process's descriptors",
        f"{strangers.MOST_OF_A_NETWORK} of one address (one /{strangers._NETWORK_BITS} of IPv6)",
        f"a header has at most {channel._LONGEST_HEADER >> 20} MiB",
        f"at most {regular_file.MOST_INDEX_BYTES // 10**6} MB and some four million values",
        f"A token of {tokens._FEWEST_BITS} random bits cannot be found",
        f"while the session starts (no less than {host_processes.LEAST_START_LIMIT:g} s then)",
        f"Each text of a failure is cut to {channel.LONGEST_FAILURE:,} characters",
        f"words of more than {printable.LONGEST} characters are cut",
        f"without anchors and numbers of more than {yaml_text._LONGEST_NUMBER} characters, "
        f"at most {yaml_text.MOST_BYTES >> 10} KiB)",
        f"`program.json` (at most {saving._MOST_MANIFEST_BYTES >> 10} KiB)",
        f"at most {module_text.MOST_BYTES // 10**6} MB. TVM trusts such a text",
        f"nodes refer to earlier ones, at most {module_text._MOST_LEVELS:,} deep",
        f"names of arrays, at most {state._MOST_LEVELS} deep",
        f"read as at most {introductions._MOST_BYTES >> 10} KiB of JSON",
    ],
)
def test_numbers_are_those_of_the_code(sentence):
    assert sentence in re.sub(r"\s+", " ", PAGE.read_text("utf-8"))


def test_files_are_read_up_to_their_limits(tmp_path):
    """Refuses one byte more than the page says, of YAML, `program.json` and stores."""
    file = tmp_path / "mine.yaml"
    for read in (pipelines.load, hints.load):
        file.write_bytes(b" " * yaml_text.MOST_BYTES)
        read(file)
        file.write_bytes(b" " * (yaml_text.MOST_BYTES + 1))
        with pytest.raises(ValueError, match=r"mine\.yaml has more than 262144 bytes"):
            read(file)
    folder = tmp_path / "program"
    saving.save(folder, annotated())
    manifest = folder / "program.json"
    text = manifest.read_text("utf-8")
    manifest.write_text(text.ljust(saving._MOST_MANIFEST_BYTES))
    saving.load(folder)
    manifest.write_text(text.ljust(saving._MOST_MANIFEST_BYTES + 1))
    with pytest.raises(ValueError, match=r"program\.json has more than 65536 bytes"):
        saving.load(folder)
    said = json.dumps({"addresses": ["127.0.0.1:1"]}).encode()
    assert introductions._read(said.ljust(1 << 16), TOKEN, False).addresses == ["127.0.0.1:1"]
    with pytest.raises(ValueError, match="65537 bytes"):
        introductions._read(said.ljust((1 << 16) + 1), TOKEN, False)


@pytest.mark.parametrize("read", [pipelines.load, hints.load])
def test_yaml_has_no_anchors(read, tmp_path):
    file = tmp_path / "mine.yaml"
    doubled = "\n".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 64))
    for text in (f"a0: &a0 [1]\n{doubled}", "passes: &a {}", "a: *b", "a: &a [*a]", "&a a: 1"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"mine\.yaml, line 1, .*anchors and aliases"):
            read(file)


def test_four_million_values():
    assert channel._MOST_VALUES == json_file.MOST_VALUES == 2**22


def test_a_stranger_is_read_no_further_than_that(monkeypatch):
    """The longest address that there is; what is behind it waits for the proof."""
    read = []
    receive = Stream.receive
    monkeypatch.setattr(
        Stream, "receive", lambda stream, size: read.append(size) or receive(stream, size)
    )
    ours, theirs = socket.socketpair()
    with theirs, ours:
        monkeypatch.setattr(handshake, "_status", lambda *arguments: handshake._GOES_ON)
        monkeypatch.setattr(handshake, "_binding", lambda *arguments, **named: b"")
        proofs = []

        def prove(*arguments):
            proofs.append(sum(read))
            return bytes(32)

        monkeypatch.setattr(handshake, "_proof", prove)
        hello = handshake._GREETING.pack(b"distir\x00", 2)
        hello += handshake._HELLO.pack(0, False, bytes(32), handshake._LONGEST_ADDRESS)
        theirs.sendall(hello + b"a" * 10_000)
        with contextlib.suppress(handshake.NotConnectedError):
            handshake.accept(Stream(ours), TOKEN)
    assert proofs[0] == BEFORE_THE_PROOF


@pytest.mark.parametrize(
    ("descriptors", "most"),
    [(resource.RLIM_INFINITY, 256), (1 << 20, 256), (1024, 256), (400, 100), (4, 1), (0, 1)],
)
def test_strangers_have_a_quarter_of_the_descriptors(descriptors, most, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (descriptors, descriptors))
    assert strangers.most_strangers() == most


def test_who_has_to_come_again_does_so_within_a_second():
    assert 0 < sum(handshake._WAITS) < 1


def test_a_stranger_too_many_costs_no_thread(monkeypatch):
    """The oldest one goes while it waits to be served."""
    monkeypatch.setattr(strangers, "MOST_OF_A_NETWORK", 2)
    agent = HostAgent("127.0.0.1:0", TOKEN)
    pairs = [socket.socketpair() for _ in range(4)]
    raws = [raw for raw, _ in pairs]
    for raw in raws:
        agent._strangers.enter(raw, "10.0.0.1")
    arrivals = iter([raws, None])
    served = []
    monkeypatch.setattr(agent, "_arrived", lambda: next(arrivals))
    monkeypatch.setattr(agent, "_receive", served.append)
    before = threading.active_count()
    agent.serve()
    while threading.active_count() > before:
        time.sleep(0.01)
    assert {id(raw) for raw in served} == {id(raw) for raw in raws[2:]}
    assert [raw.fileno() for raw in raws[:2]] == [-1, -1]
    for raw in [*served, *(other for _, other in pairs)]:
        raw.close()


def test_files_in_memory_are_sealed_against_being_shortened():
    memory = MemoryFile()
    memory.grow(100)
    with memory.path.open("r+b") as others, pytest.raises(PermissionError):
        others.truncate(50)
    memory.close()


def test_who_may_read_a_process_is_not_changed():
    """Of what prctl sets, only the signal with which copies of a launcher follow it."""
    root = PAGE.parents[1]
    sources = [
        each
        for folder in ("src", "python/distir_ext")
        for each in (root / folder).rglob("*")
        if each.suffix in (".cc", ".h", ".py")
    ]
    found = {
        name: each.name
        for each in sources
        for name in re.findall(r"PR_SET_[A-Z]+|PTRACE_[A-Z]+|prctl\(\d", each.read_text("utf-8"))
    }
    assert len(sources) > 300
    assert found == {"PR_SET_PDEATHSIG": "children.py"}


RUNS_DATA = r"""(?x)
    ^\s*(?:import|from)\s+(?:pickle|cloudpickle|marshal|shelve|dill|joblib)\b
    | ^\s*(?:from\s+yaml|import\s+yaml\s+as)\b
    | \byaml\.(?!SafeLoader\b|safe_dump\b|(?:Marked)?YAMLError\b|AliasEvent\b|org,)\w
    | (?<![\w.])(?:eval|exec)\(
    | \b(?:allow_pickle|shell)\s*=\s*True | \bos\.(?:system|popen)\(
"""


def test_nothing_is_unpickled_or_evaluated():
    package = PAGE.parents[1] / "python" / "distir_ext"
    found = [
        f"{path.name}: {line}"
        for path in package.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(RUNS_DATA, line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "  from yaml import load",
        "import yaml as y",
        "yaml.load(text, Loader)",
        "class Loader(yaml.FullLoader):",
        "x = eval(y)",
        "np.load(f, allow_pickle=True)",
    ],
)
def test_what_runs_data_is_found(line):
    assert re.search(RUNS_DATA, line)
