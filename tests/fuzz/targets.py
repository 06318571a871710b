"""Parsers of foreign data, each as a function of bytes that may raise only documented errors.

A new parser gets a function here and a folder of the same name in ``corpus``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tvm_ffi
from tests.native.library import call

from distir_ext import interop
from distir_ext.cli.array_files import read_arrays
from distir_ext.cli.shared.clusters import cluster_of
from distir_ext.cli.shared.sharded import read_plan
from distir_ext.communication.collectives import sent_by_plan
from distir_ext.hints.configuration import read_hints
from distir_ext.hints.model_config import from_config, read_fields
from distir_ext.interop import gspmd, shardy
from distir_ext.mesh.mesh import Mesh
from distir_ext.native.collective_records import names
from distir_ext.native.machine.libraries import check_library
from distir_ext.params.checkpoint import open_params
from distir_ext.params.stored_array import MappedFiles
from distir_ext.pipelines.configuration import read_configuration
from distir_ext.saved.saving import load
from distir_ext.signature.signature import parse_signature
from distir_ext.signature.specs import TensorSpec
from distir_ext.text.printable import printable_line
from distir_ext.wire import handshake
from distir_ext.wire.byte_stream import Stream
from distir_ext.wire.channel import ChannelClosedError, FrameReader, RawFrameReader
from distir_ext.wire.connections import parse_address
from distir_ext.wire.credentials import Credentials
from distir_ext.workers.answers import check_answer, check_greeting
from distir_ext.workers.branches import HostBranch
from distir_ext.workers.hosts.openings import (
    RefusedError,
    parse_below,
    parse_hosts,
    parse_opening,
    rank_of,
    request_of,
    some_ranks_of,
)

CORPUS = Path(__file__).parent / "corpus"


class _Stream(io.BytesIO):
    """A socket that gives what is in it."""

    def recv(self, size: int) -> bytes:
        return self.read(size)

    def recv_into(self, buffer: Any) -> int:
        return self.readinto(buffer)


def frames(data: bytes) -> None:
    """A frame, and it as an answer; what claims more than there is ends the channel."""
    stream: Any = _Stream(data)
    try:
        found = FrameReader().read(stream)
    except ChannelClosedError:
        return
    assert found is not None
    ((frame, _),) = RawFrameReader().read(_Stream(data)) or ()  # as it is passed on
    assert data.startswith(frame)
    with contextlib.suppress(ValueError):
        HostBranch(_Stream(data), [2, 3]).read({})
    for check in (
        check_greeting,
        lambda answer: check_answer({"step": 1, "keep": "leaves", "timed": True}, 0, answer),
        lambda answer: check_answer({"fetch": 1}, 0, answer),
        lambda answer: check_answer({"params": "p"}, 0, answer),
    ):
        try:
            check(found[0])
        except ValueError:
            continue


def frame_headers(data: bytes) -> None:
    """Fuzzes frames whose header has the stated length and is followed by bytes."""
    frames(struct.pack("<Q", len(data)) + data + bytes(1000))


class _Loopback(socket.socket):
    """One of a pair of sockets, as if it stayed on this machine."""

    def getsockname(self) -> Any:
        return "127.0.0.1", 1

    def getpeername(self) -> Any:
        return "127.0.0.1", 2


@cache
def _credentials(tls: bool | None) -> Credentials:
    return Credentials(b"of the fuzzer, one of sixteen", tls)


def _shake_hands(data: bytes, shake: Callable[[Stream], Any]) -> None:
    """One side of a handshake, whose other side says this and hangs up."""
    mine, theirs = socket.socketpair()
    with theirs, _Loopback(fileno=mine.detach()) as raw:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        stream = Stream(raw)
        stream.limit(1)
        with contextlib.suppress(
            handshake.NotConnectedError, handshake._EndedError, EOFError, OSError
        ):
            shake(stream)
            raise AssertionError("nobody can prove the token who does not have it")


def handshakes_of_who_listens(data: bytes) -> None:
    """Fuzzes replies to the connecting side: the answer, with TLS and without, and the proof."""
    first, _, said = data.partition(b"\n")
    address = _text(first)
    parse_address(address)
    for tls in (False, True):
        prove = partial(
            handshake._prove_connecting,
            address=address,
            credentials=_credentials(tls),
            purpose="session",
        )
        _shake_hands(said, prove)


def handshakes_of_who_connects(data: bytes) -> None:
    """Fuzzes messages to the listening side."""
    _shake_hands(data, lambda stream: handshake.accept(stream, _credentials(None)))


def openings(data: bytes) -> None:
    """Fuzzes requests of an authenticated peer: its purpose on the first line, then the rest."""
    purpose, _, header = data.partition(b"\n")
    stream: Any = _Stream(struct.pack("<Q", len(header)) + header + bytes(100))
    try:
        message = FrameReader().read(stream)
    except ChannelClosedError:
        return
    assert message is not None
    asked = message[0]
    for parse in (
        partial(parse_opening, _text(purpose), False, asked),
        partial(parse_opening, _text(purpose), True, asked),
        partial(parse_hosts, asked, 4, [0, 1]),
        partial(parse_below, asked, 4, [0, 1]),
        partial(request_of, asked),
        partial(rank_of, asked, [0, 1]),
        partial(some_ranks_of, asked, [0, 1]),
    ):
        try:
            parse()
        except RefusedError as error:
            json.dumps(str(error)).encode()


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def segment_plans(data: bytes) -> None:
    sent_by_plan(names.segment_exchange, _text(data), None, 1)
    call("SegmentParts", _text(data))


def transfer_plans(data: bytes) -> None:
    sent_by_plan(names.transfer, _text(data), None, 1)
    call("TransferParts", _text(data))


def signatures(data: bytes) -> None:
    parse_signature(_text(data))


def rules(data: bytes) -> None:
    """A stated rule; none stays."""
    name, _, text = _text(data).partition("\n")
    tvm_ffi.get_global_func("distir.rules.Register")(name, text)
    tvm_ffi.get_global_func("distir.rules.Unregister")(name)


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="distir-fuzz-"))


def _weights(name: str, data: bytes) -> None:
    path = _folder() / name
    path.write_bytes(data)
    with _named_and_printable(path.parent):
        found = open_params(path)
    for array in found.values():
        if array.num_bytes < 1 << 20:
            MappedFiles().native(array.shard([0] * len(array.shape), array.shape))


@contextlib.contextmanager
def _named_and_printable(folder: Path) -> Iterator[None]:
    """Errors have to name a file, and nothing that a terminal would obey."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        if str(folder) not in text or printable_line(text) != text:
            raise AssertionError(f"not a good message: {text!r}") from error
        raise


def safetensors(data: bytes) -> None:
    _weights("w.safetensors", data)


def safetensors_headers(data: bytes) -> None:
    """Fuzzes safetensors files whose header has the stated length and is followed by bytes."""
    safetensors(struct.pack("<Q", len(data)) + data + bytes(24))


def parameter_files(data: bytes) -> None:
    _weights("w.params", data)


def indices(data: bytes) -> None:
    """An index of any format, beside a file that some of them name."""
    data_file = _folder() / "data.safetensors"
    if not data_file.exists():
        data_file.write_bytes((CORPUS / "safetensors" / "two").read_bytes())
    with contextlib.suppress(OSError):  # a file that is not there, or a name that is too long
        _weights("index.json", data)


def cluster_files(data: bytes) -> None:
    """A description of a cluster, as ``--cluster FILE.json`` takes it."""
    path = _folder() / "cluster.json"
    path.write_bytes(data)
    cluster_of(str(path), 2).as_data()


def plan_files(data: bytes) -> None:
    """A plan, as ``--plan`` takes it."""
    path = _folder() / "plan.json"
    path.write_bytes(data)
    for dims in dict(read_plan(str(path))).values():
        mesh = Mesh(dp=2, tp=2)
        mesh.placement(*(dims if isinstance(dims, tuple) else ()))


def configurations(data: bytes) -> None:
    """A configuration of a pipeline, as ``--config`` takes it."""
    read_configuration(data, "the text")


def hint_files(data: bytes) -> None:
    """Hints, as ``dx.hints.load`` takes them."""
    read_hints(data, "the text")


def model_configurations(data: bytes) -> None:
    """Fuzzes fields of a ``config.json``; the class of transformers would add its defaults."""
    from_config(SimpleNamespace(**read_fields(data, "the text")))


def onnx_models(data: bytes) -> None:
    """The device configurations of a model."""
    found = interop.onnx.check(data)
    for each in found:
        assert printable_line(str(each)) == str(each)
    interop.onnx.read(data)
    assert not found


def array_files(data: bytes) -> None:
    """Arrays, as ``--values FILE.npz`` takes them."""
    path = _folder() / "values.npz"
    path.write_bytes(data)
    takes = [TensorSpec(("n", 3), "float32", (1,), (0,), (-1,))]
    with _named_and_printable(path.parent):
        read_arrays(str(path), {"x": takes, "p.0": takes})


def gspmd_shardings(data: bytes) -> None:
    """HLO's text: what is read is printed and read again, and has a mesh or says why not."""
    sharding = gspmd.parse(_text(data))
    _same(gspmd.parse(str(sharding)), sharding)
    for each in (sharding, *sharding.elements):
        with _without_position():
            canonical = each.canonical()
            _same(canonical.to_v1().canonical(), canonical)
            each.to_mesh_dims(rank=len(each.data_dims) or 2)


def shardy_attributes(data: bytes) -> None:
    """A sharding, several, or a mesh, as the text begins."""
    text = _text(data)
    if "mesh" in text[:9]:
        mesh = shardy.parse_mesh(text)
        _same(shardy.parse_mesh(str(mesh)), mesh)
    elif "per_value" in text[:30]:
        several = shardy.parse_per_value(text)
        _same(shardy.parse_per_value(shardy.per_value_text(several)), several)
    else:
        sharding = shardy.parse(text)
        _same(shardy.parse(str(sharding)), sharding)
        with _without_position():
            shardy.to_mesh_dims(sharding, Mesh(x=8, y=4))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _same(left: Any, right: Any) -> None:
    if left != right:
        raise AssertionError(f"{left!r} is not {right!r}")


@contextlib.contextmanager
def _without_position() -> Iterator[None]:
    """Fails on a FormatError: the text has been parsed, so later errors must not concern it."""
    try:
        yield
    except gspmd.FormatError as error:
        raise AssertionError from error


def saved_programs(data: bytes) -> None:
    """The manifest of a program, beside a module and weights."""
    _saved_program(data, (CORPUS / "saved_modules" / "network").read_bytes())


def saved_modules(data: bytes) -> None:
    """A module, of which the manifest says the right size and checksum."""
    stated = {"file": "module.json", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest = {"format": "distir_ext program", "version": 1, "module": stated}
    _saved_program(json.dumps(manifest).encode(), data)


def _saved_program(manifest: bytes, module: bytes) -> None:
    folder = _folder() / "program"
    folder.mkdir(exist_ok=True)
    files = {
        "program.json": manifest,
        "module.json": module,
        "weights.safetensors": (CORPUS / "safetensors" / "two").read_bytes(),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with contextlib.suppress(OSError), _named_and_printable(folder):  # a file that is not there
        load(folder)


def libraries(data: bytes) -> None:
    """The look at a library before it is loaded."""
    path = _folder() / "library.so"
    path.write_bytes(data)
    check_library(path)


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each
    for each in (
        frames,
        frame_headers,
        handshakes_of_who_listens,
        handshakes_of_who_connects,
        openings,
        segment_plans,
        transfer_plans,
        signatures,
        rules,
        safetensors,
        safetensors_headers,
        parameter_files,
        indices,
        cluster_files,
        plan_files,
        configurations,
        hint_files,
        model_configurations,
        onnx_models,
        array_files,
        gspmd_shardings,
        shardy_attributes,
        saved_programs,
        saved_modules,
        libraries,
    )
}


def corpus_of(name: str) -> list[bytes]:
    """The inputs that are kept for a target, by name."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def run(name: str, data: bytes) -> None:
    """Gives an input to a target; raises what the target must not raise."""
    try:
        TARGETS[name](data)
    except ValueError as error:
        json.dumps(str(error)).encode()  # a message that can be printed
