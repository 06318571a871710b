"""Malformed frames from a worker or a controller: each is an error, and no more than that."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import struct
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

from distir_ext.mesh.blocks import Layout
from distir_ext.params.host_array import host_array
from distir_ext.params.parts import StoredPart
from distir_ext.params.stored_array import StoredArray
from distir_ext.session.global_arrays import SizeBinding, join
from distir_ext.signature.specs import ShapeSpec, TensorSpec
from distir_ext.text.printable import printable
from distir_ext.wire.channel import (
    FROM_WORKERS,
    LONGEST_FAILURE,
    ChannelClosedError,
    Frame,
    FrameReader,
    Held,
    RawFrameReader,
    _InMemory,
    decode,
    receive,
    send,
)
from distir_ext.workers.answers import check_answer, check_fetched, check_greeting
from distir_ext.workers.base import WorkerError
from distir_ext.workers.branches import HostBranch, WorkerBranch

from ..conftest import start_workers
from ..lateness import SANITIZED


def read(header, data=b"", prefix=None, **options):
    """Reads a frame with this header, which is any JSON value or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        writer = threading.Thread(
            target=write, args=(theirs, len(text) if prefix is None else prefix, text + data)
        )
        writer.start()
        try:
            return FrameReader(**options).read(ours)
        finally:
            ours.close()
            writer.join()


def write(stream, length, content):
    try:
        stream.sendall(struct.pack("<Q", length) + content)
        stream.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the reader has seen enough


def tensor(dtype, shape):
    return {"message": {"tensor": 0}, "buffers": [[dtype, shape]]}


PART = StoredPart(
    StoredArray("w", Path("/w"), 0, (4, 2), "float32", "float32"),
    Layout((2,), (3, 7), (0,), 2),
    (2, 2),
).to_plain()

NO_FRAMES = {
    "bytes that wrap": (tensor("float64", [2**58 + 16]), "more elements than there can be"),
    "bits that wrap": (tensor("float64x4096", [2**46 + 16]), "bytes are more than there can be"),
    "elements that wrap": (tensor("int8", [2**32, 2**32]), "more elements than there can be"),
    "strides that wrap": (tensor("int8", [0, 2**40, 2**40]), "more elements than there can be"),
    "a size beyond 64 bits": (tensor("int8", [2**70]), "not a number of elements"),
    "negative sizes": (tensor("float64", [-1, -8]), "not a number of elements"),
    "a size that is no integer": (tensor("float64", [1.0]), "not a number of elements"),
    "a size that is a boolean": (tensor("float64", [True]), "not a number of elements"),
    "packed elements": (tensor("int4", [64]), "do not fill whole bytes"),
    "sizes below zero, which make room": (
        {"message": None, "buffers": [["int8", [2**49]], ["int8x32768", [2**35]]]},
        "int8x32768 are no numbers of a known size",
    ),
    "lanes that are counted later": (tensor("float32xvscalex4", [1]), "no numbers of a known size"),
    "addresses": (tensor("handle", [1]), "no numbers of a known size"),
    "a dtype that is half a character": (tensor("\ud800", [1]), r"no dtype '\\ud800'"),
    "no elements": (tensor("void", [4]), "do not fill whole bytes"),
    "an unknown dtype": (tensor("flot32", [1]), "flot32"),
    "a dtype that is no text": (tensor(7, [1]), "a dtype is a name"),
    "too many dimensions": (tensor("int8", [1] * 65), "at most 64 sizes"),
    "more than the memory": ({"message": {"bytes": 0}, "buffers": [2**50]}, "bytes of buffers"),
    "all buffers together": ({"message": None, "buffers": [2**36] * 100}, "bytes of buffers"),
    "a negative number of bytes": ({"message": None, "buffers": [-1]}, "not a number of a frame"),
    "another kind of buffer": ({"message": {"bytes": 0}, "buffers": [["int8", [1]]]}, "kind"),
    "no such buffer": ({"message": {"tensor": 3}, "buffers": []}, "not a frame: IndexError"),
    "a buffer from the end": ({"message": {"tensor": -1}, "buffers": [["int8", [0]]]}, "-1"),
    "no message": ({"buffers": []}, "not a frame: KeyError"),
    "no object": ([1, 2], "not a frame: TypeError"),
    "no JSON": (b"{", "Expecting"),
    "no text": (b"\xff\xfe", "decode"),
    "nested too deep": (b'{"message":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "recursion"),
    "lists in lists": (
        b'{"buffers":[],"message":' + b'{"list":[' * 5000 + b"]}" * 5000 + b"}",
        "recursion",
    ),
    "more values than text should have": (b"[" + b"[]," * (1 << 21) + b"[]]", "values"),
    "a number of thousands of digits": (b"9" * 10_000, "digits"),
    "an unknown kind": ({"message": {"object": 1}, "buffers": []}, 'unknown kind "object"'),
    "two kinds": ({"message": {"held": 1, "bytes": 0}, "buffers": []}, "too many values"),
    "an object that is not held": ({"message": {"held": ["1", 0]}, "buffers": []}, "not a number"),
    "half a name": ({"message": {"held": [1]}, "buffers": []}, "not enough values"),
    "a part of none": ({"message": {"part": {"array": 1}}, "buffers": []}, "lacks a valid"),
    "a part on a million devices": (
        {"message": {"part": {**PART, "devices": [[0, 1 << 20]]}}, "buffers": []},
        "too many devices",
    ),
    "a list that is not marked": ({"message": [1], "buffers": []}, "not marked"),
    "an array on disk that is none": ({"message": {"stored": {"name": 1}}, "buffers": []}, "lacks"),
    "integers that are none": ({"message": {"shape": [2**63]}, "buffers": []}, "something else"),
}


@pytest.mark.parametrize("case", NO_FRAMES)
def test_what_is_no_frame_is_an_error(case):
    header, message = NO_FRAMES[case]
    with pytest.raises(ValueError, match=message):
        read(header, b"x" * 4096)


@pytest.mark.parametrize(
    "header",
    [
        {"message": {"\x1b[2J\x07\u202e\ud800" * 1000: 1}, "buffers": []},
        {"message": {"held": "\x1b[2J" * 1000}, "buffers": []},
        {"message": {"\x1b[2J" * 1000: 1, "b": 2}, "buffers": []},
        tensor("\x1b[2J" * 1000, [1]),
    ],
)
def test_terminal_obeys_nothing_of_what_is_no_frame(header):
    with pytest.raises(ValueError, match=r".") as caught:
        read(header)
    assert str(caught.value) == printable(str(caught.value))
    assert len(str(caught.value)) < 5000


def test_tensor_that_there_is_no_memory_for():
    """The process may have less than the machine; TVM says so as an error of its own."""
    with pytest.raises(ValueError, match=r"no memory for int8 \[7\]: std::bad_alloc"):
        read(tensor("int8", [7]), b"1234567", new_tensor=no_memory)


def no_memory(shape, dtype):
    raise RuntimeError("std::bad_alloc")


@pytest.mark.parametrize("length", [0, (64 << 20) + 1, 2**63, 2**64 - 1])
def test_header_of_a_length_that_no_header_has(length):
    with pytest.raises(ValueError, match=f"cannot have a header of {length} bytes"):
        read(b"{}", prefix=length)


def test_claimed_length_takes_no_memory():
    """Neither of a header nor of a buffer."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Exception, match="the stream has ended"):
        read(b"{}", prefix=64 << 20)
    with pytest.raises(Exception, match="the stream has ended"):
        read({"message": None, "buffers": [1 << 30, ["float32", [1 << 28]]]}, b"x" * 10_000)
    shadow = (1 << 27) // 1024 if SANITIZED else 0  # AddressSanitizer notes each 8 bytes of a GiB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000 + shadow  # KiB


def test_a_frame_takes_as_much_memory_as_it_has_bytes():
    """However often a message refers to a buffer, and however many devices it names."""
    content = b"x" * 1_000_000
    part = {"part": {**PART, "devices": [[0, (1 << 20) - 1]], "mesh_shape": [(1 << 20) - 1]}}
    frames = [
        ({"list": [{"bytes": 0}] * 300}, [len(content)]),
        ({"list": [{"tensor": 0}] * 300}, [["int8", [len(content)]]]),
        ({"list": [part] * 20}, [len(content)]),
    ]
    for message, buffers in frames:
        for known in (None, {}):
            text = json.dumps({"message": message, "buffers": buffers}).encode()
            frame = struct.pack("<Q", len(text)) + text + content
            tracemalloc.start()
            reader = FrameReader()
            reader.known = known
            (found,) = reader.read(_InMemory(frame))
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert most < 5 * len(frame)
            assert len(found) in (20, 300)
    assert found[0].layout.runs == [(0, (1 << 20) - 1)]
    (same,) = FrameReader().read(_InMemory(frame_of({"list": [{"bytes": 0}] * 2}, b"abc")))
    assert same == [b"abc", b"abc"]
    assert same[0] is same[1]


def test_many_small_buffers_take_little_more_than_the_words_that_claim_them():
    """Buffers that have not arrived, or are empty, are nothing."""
    count = 1000
    for description, content in ((0, b""), (1, b"x"), (["int8", [0]], b""), (["int8", [1]], b"x")):
        text = json.dumps({"message": None, "buffers": [description] * count}).encode()
        frame = struct.pack("<Q", len(text)) + text + content * count
        for known in (None, {}):
            for rest in (frame, frame[: len(frame) - len(content)]):
                tracemalloc.start()
                reader = FrameReader()
                reader.known = known
                with contextlib.suppress(ChannelClosedError):
                    reader.read(_InMemory(rest))
                _, most = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert most < 30 * len(frame), (description, known)


def test_many_small_tensors_take_little_memory():
    """Also that which Python does not count."""
    count = 10_000
    message = {"list": [{"tensor": i} for i in range(count)]}
    text = json.dumps({"message": message, "buffers": [["int8", [1]]] * count}).encode()
    frame = struct.pack("<Q", len(text)) + text + b"x" * count
    before = resident_bytes()
    (found,) = FrameReader().read(_InMemory(frame))
    assert len(found) == count
    assert SANITIZED or resident_bytes() - before < 1500 * count


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize()


def frame_of(message, content):
    text = json.dumps({"message": message, "buffers": [len(content)]}).encode()
    return struct.pack("<Q", len(text)) + text + content


def test_what_only_a_controller_says_is_not_read():
    """Of a worker, directly or through its host."""
    for message in (
        {"held": [1, 0]},
        {"list": [{"part": PART}]},
        {"dict": {"x": {"held": [1, 0]}}},
    ):
        frame = frame_of(message, b"")
        decode(frame)
        with pytest.raises(ValueError, match="that the other side may not send"):
            decode(frame, FROM_WORKERS)
        for branch, sent in (
            (WorkerBranch, frame),
            (HostBranch, frame_of({"dict": {"from": None, "frame": {"bytes": 0}}}, frame)),
        ):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                theirs.sendall(sent)
                try:
                    said = branch(ours, [0]).read({}).broken
                except ValueError as error:
                    said = str(error)
                assert "that the other side may not send" in said


def test_memory_that_ends_is_an_error_of_the_frame(monkeypatch):
    frame = frame_of({"list": [{"bytes": 0}]}, b"abc")
    reader = FrameReader()
    monkeypatch.setattr(reader, "_decode", lambda value: bytearray(1 << 62))
    with pytest.raises(ValueError, match="there is no memory for what arrived"):
        reader.read(_InMemory(frame))


def test_failures_are_cut():
    text = "\x1b" + "x" * (1 << 20)
    failure = {
        **dict.fromkeys(["function", "operator", "kind", "message", "backtrace"], text),
        "worker": 1,
        "device": 1,
        "first": True,
    }
    found = check_answer(REQUEST, 1, {"failure": failure})["failure"]
    assert found["message"].startswith(r"\x1bxxx")
    assert found["message"].endswith(f"x... ({len(text) - LONGEST_FAILURE} more characters)")
    assert len(check_greeting({"failure": text})["failure"]) < LONGEST_FAILURE + 100


def test_worker_whose_failure_is_long():
    """More than a header may have: it is that worker's error, with its kind."""
    for length in (70 << 20, 10):
        workers = start_workers("processes", [0, 1])
        with pytest.raises(WorkerError, match=r"x{9}") as caught:
            workers.run("fail", [None, "distir.test.fail_with"], [[], [length]])
        assert (caught.value.worker, caught.value.kind) == (1, "ValueError")
        assert len(str(caught.value)) < 2 * LONGEST_FAILURE


def test_messages_arrive_as_they_were_sent():
    values = {
        "a": [1, 2.5, None, True, "text", b"", b"bytes" * 1000],
        "t": tvm_ffi.from_dlpack(np.arange(6.0).reshape(2, 3)),
        "empty": tvm_ffi.from_dlpack(np.zeros((0, 3), "int8")),
        "h": Held(7, 2),
        "s": tvm_ffi.Shape((2, 0)),
    }
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(theirs, values)
        found = receive(ours)
    assert found["a"] == values["a"]
    assert found["h"] == Held(7, 2)
    assert tuple(found["s"]) == (2, 0)
    np.testing.assert_array_equal(np.from_dlpack(found["t"]), np.arange(6.0).reshape(2, 3))
    assert found["empty"].shape == (0, 3)


def test_what_is_passed_on_is_what_was_sent():
    """Frames in frames, which whoever passes them on does not read; failures are noticed."""
    inner = Frame({"x": tvm_ffi.from_dlpack(np.arange(3.0)), "p": StoredPart.from_plain(PART)})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(theirs, {"frame": inner})
        found = decode(receive(ours)["frame"])
        np.testing.assert_array_equal(np.from_dlpack(found["x"]), np.arange(3.0))
        assert found["p"].box(7).begin == (2, 0)
        with pytest.raises(ValueError, match="device 5 has no part of"):
            found["p"].box(5)
        for message in ({"failure": 1}, {"result": "failure"}, "failure"):
            send(theirs, message)
            ((frame, has_failed),) = RawFrameReader().read(ours)
            assert decode(frame) == message
            assert has_failed == ("failure" in message and isinstance(message, dict))
    with pytest.raises(ValueError, match="cut off"):
        decode(frame[:-1])


def test_equal_frames_are_decoded_once():
    known = {}
    found = []
    for value in (1.0, 1.0, 2.0):
        ours, theirs = socket.socketpair()
        reader = FrameReader()
        reader.known = known
        with ours, theirs:
            send(theirs, {"x": tvm_ffi.from_dlpack(np.full(3, value)), "b": b"bytes"})
            found.append(reader.read(ours)[0])
    assert found[0] is found[1]
    assert len(known) == 2
    for message, value in zip(found, (1.0, 1.0, 2.0), strict=True):
        np.testing.assert_array_equal(np.from_dlpack(message["x"]), np.full(3, value))
        assert message["b"] == b"bytes"


def test_message_that_no_reader_takes_is_not_sent():
    with pytest.raises(ValueError, match="more than the 67108864 that are sent"):
        Frame("x" * (65 << 20))


TENSOR = TensorSpec((4,), "float32", (1,), (0,), (-1,), "(None,)")
REQUEST = {"step": 3, "keep": "leaves", "timed": True}
TIMES = [0.0, 1.0, 2.0]


def answer(result, **changes):
    return {"step": 3, "times": TIMES, "result": result, **changes}


def held(sizes, dtype="float32", **changes):
    return {"shape": tvm_ffi.Shape(sizes), "dtype": dtype} | changes


NO_ANSWERS = {
    "no object": "text",
    "another step": answer([], step=4),
    "nothing but the step": {"step": 3, "times": TIMES},
    "no times": answer([], times=[1.0]),
    "no results": answer(None),
    "no shape": answer([held((1,), shape=[1])]),
    "elements that wrap": answer([held((2**40, 2**40))]),
    "no dtype": answer([held((1,), "numbers")]),
    "a value that is none": answer([held((1,), value="x")]),
    "another value": answer([held((1,), value=tvm_ffi.from_dlpack(np.zeros(2, "float32")))]),
    "an array on disk": answer([StoredArray("w", Path("/w"), 0, (1,), "float32", "float32")]),
    "a tensor that it does not hold": answer([tvm_ffi.from_dlpack(np.zeros(2, "float32"))]),
    "a list": answer([[1]]),
    "bytes": answer([b"x"]),
    "a name without an object": answer([Held(1, 0)]),
    "no failure": {"failure": "it failed"},
    "somebody else's failure": {
        "failure": {
            **dict.fromkeys(["function", "operator", "kind", "message", "backtrace"], ""),
            "worker": 2,
            "device": 0,
            "first": True,
        }
    },
}


@pytest.mark.parametrize("case", NO_ANSWERS)
def test_what_is_no_answer_is_an_error(case):
    with pytest.raises(ValueError, match=r"its answer|than there can be|dtype"):
        check_answer(REQUEST, 1, NO_ANSWERS[case])


def test_what_is_an_answer():
    values = [None, True, 1, 2.5, "text", tvm_ffi.Shape((2,))]
    assert check_answer(REQUEST, 1, answer([*values, held((2,))]))["result"][:6] == values
    fields = {**REQUEST, "keep": "fields", "arguments": [None]}
    with pytest.raises(ValueError, match="its answer has a int among its results"):
        check_answer(fields, 1, answer([1]))
    with pytest.raises(ValueError, match="its answer has 2 results for 1 values"):
        check_answer(fields, 1, answer([held((2,))] * 2))


@pytest.mark.parametrize(
    ("request_", "said", "message"),
    [
        ({"addresses": [Held(1, 0)]}, {"addresses": [4096]}, "does not say where"),
        ({"addresses": [Held(1, 0)]}, {"addresses": tvm_ffi.Shape(())}, "for each of 1 tensors"),
        ({"addresses": [Held(1, 0)]}, {"addresses": tvm_ffi.Shape((-8,))}, "not a number"),
        ({"can_read": [tvm_ffi.Shape((7, 4096))]}, {"can_read": 1}, "does not say what it can"),
    ],
)
def test_answers_about_memory(request_, said, message):
    with pytest.raises(ValueError, match=message):
        check_answer(request_, 1, said)


@pytest.mark.parametrize("device_type", [None, "1", True, 1.0, -1, 0, 10**30])
def test_greeting_with_a_device_that_there_is_not(device_type):
    greeting = {"ready": True, "clock": "c", "device_type": int(tvm_ffi.DLDeviceType.kDLCPU)}
    assert check_greeting(greeting) == greeting
    with pytest.raises(ValueError, match="its answer names no type of device"):
        check_greeting({**greeting, "device_type": device_type})


@pytest.mark.parametrize(
    ("spec", "value", "match"),
    [
        (TENSOR, 7, r"result 0: device 0 returned a int, expected float32\[4\]"),
        (TENSOR, tvm_ffi.Shape((4,)), "device 0 returned a Shape, expected float32"),
        (ShapeSpec(), "\x1b[2J", "device 0 returned a str, expected shape"),
        (ShapeSpec(), tvm_ffi.from_dlpack(np.zeros(2)), "device 0 returned a .*, expected shape"),
    ],
)
def test_result_of_another_kind_than_the_program_has(spec, value, match):
    with pytest.raises(ValueError, match=match):
        join(None, spec, {0: value}, "result 0", SizeBinding())


def test_tensor_that_was_described_otherwise():
    found = {"tensor": tvm_ffi.from_dlpack(np.zeros((2, 3), "float32"))}
    check_fetched(found, (2, 3), "float32")
    for shape, dtype in [((3, 2), "float32"), ((6,), "float32"), ((2, 3), "int32")]:
        with pytest.raises(ValueError, match=r"a tensor of float32 \[2, 3\], which it had"):
            check_fetched(found, shape, dtype)


def test_shard_of_another_kind_is_not_pasted():
    paste = tvm_ffi.get_global_func("distir.runtime.paste")
    whole = tvm_ffi.from_dlpack(np.zeros((4, 4), "float32"))
    for shard, begin in [
        (np.ones((2, 4), "float64"), (0, 0)),
        (np.ones((2, 4, 1), "float32"), (0, 0, 0)),
        (np.ones(4, "float32"), (0,)),
        (np.ones((2, 4), "float32"), (0,)),
        (np.ones((2, 4), "float32"), (-2, 0)),
    ]:
        with pytest.raises(ValueError, match=r"a shard of .* cannot be put at"):
            paste(tvm_ffi.from_dlpack(shard), whole, tvm_ffi.Shape(begin))
    assert not np.from_dlpack(whole).any()


def test_tensors_of_sizes_that_wrap_are_not_made():
    new = tvm_ffi.get_global_func("distir.runtime.new_host_tensor")
    for shape in [(2**58 + 16,), (2**32, 2**32), (-1, -8), (0, 2**40, 2**40)]:
        with pytest.raises(ValueError, match="there is no tensor of shape"):
            new(tvm_ffi.Shape(shape), "float64")
    array = host_array(np.zeros(4))
    with pytest.raises(ValueError, match="there is no"):
        array.shard([0], [2**60])
    with pytest.raises(ValueError, match=r"there is no shard \[1, 1\]"):
        array.shard([0, 0], [1, 1])


@tvm_ffi.register_global_func("distir.test.new_tensor", override=True)
def new_tensor(shape, dtype):
    return tvm_ffi.get_global_func("distir.runtime.new_tensor")(shape, dtype).shape


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2**62 + 1,), "int32"), ((2**32, 2**32), "int8"), ((-1, -8), "float64"), ((-1,), "int8")],
)
def test_programs_are_given_no_tensor_of_a_size_that_wraps(shape, dtype):
    """Its few bytes would be the heap's; a program has sizes of shapes that it is given."""
    workers = start_workers("threads", [0])
    with pytest.raises(WorkerError, match="there is no tensor of shape"):
        workers.run("new", ["distir.test.new_tensor"], [[tvm_ffi.Shape(shape), dtype]])
    workers.close()


@pytest.mark.large
@pytest.mark.parametrize(
    ("header", "message"),
    [
        (tensor("float64", [2**58 + 16]), "more elements than there can be"),
        ({"message": {"dict": {"step": 1}}, "buffers": []}, "is not that of the step"),
        ({"message": {"\x1b[2J": 1}, "buffers": []}, r'unknown kind "\\x1b\[2J"'),
    ],
)
def test_worker_that_says_anything_ends_its_session_with_an_error(header, message):
    workers = start_workers("processes", [0, 1])
    text = json.dumps(header)
    frame = struct.pack("<Q", len(text)).decode("latin-1") + text
    with pytest.raises(WorkerError, match=message) as caught:
        workers.run("lie", [None, "distir.test.say"], [[], [frame]])
    assert (caught.value.worker, caught.value.kind) == (1, "ProtocolError")
    assert not workers.is_open
