"""Directories that somebody made so that reading them hurts: one error that names the file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import time

import pytest
import tvm

import distir_ext as dx

from .test_saving import annotated, weights

SECONDS = 5


@pytest.fixture(autouse=True)
def takes_no_time():
    begin = time.process_time()
    yield
    assert time.process_time() - begin < SECONDS


@pytest.fixture
def folder(tmp_path):
    dx.save(tmp_path / "program", annotated(), weights())
    return tmp_path / "program"


def change(folder, **changes):
    manifest = folder / "program.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **changes}))


def refuse(folder, message, name="program.json", error=ValueError):
    with pytest.raises(error, match=message) as caught:
        dx.load(folder)
    assert str(folder / name) in str(caught.value)
    assert len(str(caught.value)) < 2000


MODULE = {"file": "module.json", "bytes": 1, "sha256": ""}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "another"}, "is no program that distir_ext.save wrote"),
        ({"format": None}, "is no program that distir_ext.save wrote"),
        ({"version": 2}, "has the version 2; this package reads 1"),
        ({"version": True}, "has the version True; this package reads 1"),
        ({"version": "9" * 500}, "has the version 9{40}; this"),
        ({"module": None}, "it does not say which file has the module"),
        ({"module": {**MODULE, "bytes": "1"}}, "it does not say which file has the module"),
        ({"module": {**MODULE, "file": "../module.json"}}, "is not the name of a file beside it"),
        ({"module": {**MODULE, "file": "/etc/passwd"}}, "is not the name of a file beside it"),
        ({"module": {**MODULE, "file": ["a"]}}, "is not the name of a file beside it"),
        ({"module": {**MODULE, "file": "a\x1b[2J"}}, "is not the name of a file beside it"),
        ({"weights": []}, "it does not say which file has the weights"),
        ({"weights": {"file": "program.json", "bytes": 1}}, "is no safetensors"),
    ],
)
def test_manifest(folder, changes, message):
    change(folder, **changes)
    refuse(folder, message)


def test_texts_that_are_no_manifest(folder):
    for text in ("", "[]", "{", "[" * 100_000, '{"format":1,"format":2}', " " * 100_000):
        (folder / "program.json").write_text(text)
        refuse(folder, "damaged|bytes")


@pytest.mark.parametrize("name", ["module.json", "weights.safetensors", "program.json"])
def test_files_that_are_not_there(folder, name):
    (folder / name).unlink()
    refuse(folder, "No such file", name, FileNotFoundError)


@pytest.mark.parametrize("name", ["module.json", "weights.safetensors"])
def test_files_of_another_size(folder, name):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-8])
    refuse(folder, "is damaged", name)
    change(folder, weights={"file": "weights.safetensors", "bytes": 10**30})
    (folder / name).write_bytes(content)
    refuse(folder, r"bytes, not 10{30}", "weights.safetensors")


def test_a_module_that_was_changed(folder):
    path = folder / "module.json"
    path.write_bytes(path.read_bytes().replace(b'"float32"', b'"float64"', 1))
    refuse(folder, "it has another checksum", "module.json")


@pytest.mark.parametrize("name", ["module.json", "weights.safetensors"])
@pytest.mark.parametrize("kind", ["link", "device", "pipe", "folder"])
def test_what_is_no_file_of_the_folder(folder, tmp_path, name, kind):
    path = folder / name
    if kind == "link":
        path.rename(tmp_path / name)
        path.symlink_to(tmp_path / name)
    else:
        path.unlink()
        make = {"device": lambda: path.symlink_to("/dev/zero"), "pipe": lambda: os.mkfifo(path)}
        make.get(kind, path.mkdir)()
    refuse(folder, "not in the directory|not a regular file", name)


def node(kind, data=None):
    return {"type": kind, "data": data}


def array(*data):
    return node("ffi.Array", list(data))


def tensor(*shape):
    """A float32 that says that it has this shape."""
    text = struct.pack("<QQiiiBBH", 0xDD5E40F096B4A13F, 0, 1, 0, len(shape), 2, 32, 1)
    text += struct.pack(f"<{len(shape) + 1}q", *shape, 4) + bytes(4)
    return node("ffi.Tensor", base64.b64encode(text).decode())


GRAPHS = {
    "nothing": ([], "cannot be read"),
    "no list": ({}, "it has no list of nodes"),
    "no node": ([1], "node 0 has no type"),
    "itself": ([array(0)], "node 0 refers to node 0, which is not before it"),
    "a circle": ([array(1), array(0)], "node 0 refers to node 1, which is not before it"),
    "a circle of fields": (
        [node("ir.IntImm", {"ty": 0, "value": 0, "span": 0})],
        "node 0 refers to node 0, which is not before it",
    ),
    "a number below 0": ([array(-1)], "node 0 refers to node -1"),
    "200,000 levels": (
        [node("int", 1), *(array(i) for i in range(200_000))],
        "has more than 5000 levels below it",
    ),
    "a function": ([node("ffi.Function", {})], "is a 'ffi.Function', which is no part"),
    "a library": ([node("ffi.Module", "AAAA")], "is a 'ffi.Module', which is no part"),
    "a type that there is not": ([node("relax.Nothing", {})], "which this version of TVM lacks"),
    "a tensor beyond memory": ([tensor(1 << 40, 1 << 40)], "has no valid shape|bytes for"),
    "a tensor that lacks bytes": ([tensor(1 << 20)], "bytes for"),
    "no tensor": ([node("ffi.Tensor", "!")], "node 0 has no tensor"),
    "a number": ([node("int", 7)], "has no module, but a int"),
    "a list": ([array()], "has no module, but a Array"),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_module(folder, case):
    nodes, message = GRAPHS[case]
    write_module(folder, {"root_index": max(len(nodes) - 1, 0), "nodes": nodes})
    refuse(folder, message, "module.json")


def write_module(folder, graph):
    text = json.dumps(graph).encode()
    (folder / "module.json").write_bytes(text)
    sha256 = hashlib.sha256(text).hexdigest()
    change(folder, module={"file": "module.json", "bytes": len(text), "sha256": sha256})


def test_a_module_of_another_version_of_tvm(folder):
    graph = json.loads((folder / "module.json").read_text())
    for each in graph["nodes"]:
        if each["type"] == "relax.expr.SeqExpr":
            each["data"]["new_field"] = each["data"].pop("blocks")
    write_module(folder, graph)
    change(folder, tvm="9.9.9")
    refuse(folder, rf"written with TVM 9\.9\.9, and this is {tvm.__version__}", "module.json")
