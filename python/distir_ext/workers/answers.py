"""Checks the answers of workers before anything is done with them.

A worker's program or host may have been taken over, so an answer may hold anything. Its form is
checked here for all its readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm_ffi

from distir_ext.params.host_array import check_counts, check_shape, tensor_bytes
from distir_ext.params.stored_array import StoredArray, StoredShards
from distir_ext.text.printable import printable, shortened
from distir_ext.wire.channel import LONGEST_FAILURE

# Results that are sent, and do not stay with the worker.
_VALUES = (type(None), bool, int, float, str, tvm_ffi.Shape)

_FAILURE_TEXTS = ("function", "operator", "kind", "message", "backtrace")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"its answer {what}")


def check_greeting(answer: Any) -> dict[str, Any]:
    """The answer to a controller's first message.

    Raises:
        ValueError: it is none.
    """
    _require(isinstance(answer, dict), "is not an object")
    for reason in ("failure", "refused"):
        if reason in answer:
            _require(isinstance(answer[reason], str), f"has a {reason} that is not text")
            return {reason: _text(answer[reason])}
    _require(isinstance(answer.get("clock"), str), "names no clock")
    device_type = answer.get("device_type")
    is_known = type(device_type) is int and device_type in set(tvm_ffi.DLDeviceType)
    _require(is_known, "names no type of device")
    return dict(answer)


def check_answer(request: Mapping[str, Any], rank: int, answer: Any) -> dict[str, Any]:
    """The answer of a worker to a request, or its failure.

    Raises:
        ValueError: it is neither.
    """
    _require(isinstance(answer, dict), "is not an object")
    if "failure" in answer:
        return {"failure": _failure(answer["failure"], rank)}
    if "fetch" in request:
        _require(isinstance(answer.get("tensor"), tvm_ffi.Tensor), "has no tensor")
    elif "share" in request:
        _require(answer.get("shared") is True, "does not say that it has shared its tensors")
    elif "addresses" in request:
        found = answer.get("addresses")
        _require(isinstance(found, tvm_ffi.Shape), "does not say where its tensors are")
        count = len(request["addresses"])
        _require(len(check_counts(found)) == count, f"has no address for each of {count} tensors")
    elif "can_read" in request:
        _require(isinstance(answer.get("can_read"), bool), "does not say what it can read")
    elif "params" in request:
        return _params(answer)
    else:
        _step(request, answer)
    return dict(answer)


def check_fetched(answer: Mapping[str, Any], shape: Any, dtype: str) -> None:
    """Compares a tensor that was fetched with what the worker had said that it is.

    Raises:
        ValueError: it is another one.
    """
    tensor = answer["tensor"]
    found, expected = list(tensor.shape), list(shape)
    _require(
        found == expected and str(tensor.dtype) == dtype,
        f"has a tensor of {tensor.dtype} {found}, which it had described as {dtype} {expected}",
    )


def _failure(failure: Any, rank: int) -> dict[str, Any]:
    _require(
        isinstance(failure, dict)
        and all(isinstance(failure.get(text), str) for text in _FAILURE_TEXTS)
        and failure.get("worker") == rank
        and type(failure.get("device")) is int
        and type(failure.get("first")) is bool,
        "has a failure that does not say what has failed",
    )
    return {**failure, **{text: _text(failure[text]) for text in _FAILURE_TEXTS}}


def _text(said: str) -> str:
    """Returns the text of a worker's failure, shortened and made printable."""
    return printable(shortened(said, LONGEST_FAILURE))


def _params(answer: Mapping[str, Any]) -> dict[str, Any]:
    if "refused" in answer:
        _require(isinstance(answer["refused"], str), "has a reason that is not text")
        return {"refused": _text(answer["refused"]), "of_system": bool(answer.get("of_system"))}
    params = answer.get("params")
    _require(
        isinstance(params, dict)
        and all(isinstance(each, StoredArray | StoredShards) for each in params.values()),
        "does not say where the weights are",
    )
    return {"params": params}


def _step(request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    is_of_step = answer.get("step") == request["step"] and "result" in answer
    _require(is_of_step, "is not that of the step")
    if request.get("timed"):
        times = answer.get("times")
        _require(
            isinstance(times, list)
            and len(times) == 3
            and all(isinstance(each, float) for each in times),
            "does not say when it was made",
        )
    result, keep = answer.get("result"), request["keep"]
    if keep == "object":
        _require(isinstance(result, dict), "does not describe what it holds")
        _description(result)
    elif keep in ("fields", "leaves"):
        _require(isinstance(result, list), "does not have a list of results")
        assert isinstance(result, list)
        if keep == "fields":
            count = len(request["arguments"])
            _require(len(result) == count, f"has {len(result)} results for {count} values")
        for each in result:
            if isinstance(each, dict):
                _description(each)
            else:
                is_value = keep == "leaves" and isinstance(each, _VALUES)
                _require(is_value, f"has a {type(each).__name__} among its results")


def _description(held: Any) -> None:
    """Checks what a worker says of an object that it holds."""
    if "shape" not in held:
        return
    shape, dtype, value = held["shape"], held.get("dtype"), held.get("value")
    _require(isinstance(shape, tvm_ffi.Shape), "has a tensor without a shape")
    tensor_bytes(check_shape(shape), dtype)
    _require(value is None or isinstance(value, tvm_ffi.Tensor), "has a value that is no tensor")
    if value is not None:
        check_fetched({"tensor": value}, shape, dtype)
