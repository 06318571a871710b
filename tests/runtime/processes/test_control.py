"""Messages of a controller for a load and for a call, as numbers of frames and bytes.

They do not grow with workers times arguments: workers that do the same are sent the same, a host is
sent it once, and weights are named when a program is loaded and not in calls.
"""

from __future__ import annotations

import resource

import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file
from tvm import relax

import distir_ext as dx
from distir_ext.session.session import Session
from distir_ext.wire.channel import Frame
from distir_ext.workers import exchange

SIZE = 8


def executable(num_workers, num_weights, size=SIZE):
    """``main(x) = x + w0``, with more weights of rows by device."""
    builder = relax.BlockBuilder()
    names = ["x", *(f"w{i}" for i in range(num_weights))]
    type_ = relax.TensorType((num_workers, size), "float32")
    params = [relax.Var(name, type_) for name in names]
    with builder.function("main", params, attrs={"num_input": 1}):
        with builder.dataflow():
            y = builder.emit_output(relax.op.add(params[0], params[1]))
        builder.emit_func_output(y)
    plan = {r"x|w\d+": ("d", None)}
    return dx.build(dx.annotate(builder.get(), dx.Mesh(d=num_workers), plan))


def weights_of(num_workers, num_weights, size=SIZE):
    return {f"w{i}": np.full((num_workers, size), i, "float32") for i in range(num_weights)}


class CountedStream:
    """A stream of a controller, whose bytes are counted."""

    def __init__(self, stream):
        self._stream = stream
        self.sent = 0
        self.received = 0

    def fileno(self):
        return self._stream.fileno()

    def close(self):
        self._stream.close()

    def sendmsg(self, buffers):
        count = self._stream.sendmsg(buffers)
        self.sent += count
        return count

    def recv_into(self, buffer):
        count = self._stream.recv_into(buffer)
        self.received += count
        return count


class Counted:
    """Counts the frames that a session's controller makes, and the bytes of each stream."""

    def __init__(self, session, frames):
        self._frames = frames
        self._branches = session._workers._started.branches
        for branch in self._branches:
            branch.stream = CountedStream(branch.stream)

    def during(self, work):
        """Frames, and by stream bytes that are sent and received meanwhile."""
        streams = [branch.stream for branch in self._branches]
        self._frames.clear()
        for each in streams:
            each.sent = each.received = 0
        work()
        sent, received = [each.sent for each in streams], [each.received for each in streams]
        return len(self._frames), sent, received


@pytest.fixture(scope="module")
def frames():
    """The frames that controllers make of messages."""
    made = []

    def make(*arguments):
        made.append(Frame(*arguments))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "Frame", make)
        yield made


@pytest.fixture(scope="module")
def counted(frames):
    """A session of four workers of one host."""
    with Session(4, workers="processes") as session:
        yield session, Counted(session, frames)


@pytest.fixture(scope="module")
def counted_hosts(agents, frames):
    """Session on two hosts, with its counts of frames and bytes."""
    hosts = dx.Hosts([agent.address for agent in agents])
    with Session(4, workers=hosts) as session:
        yield session, Counted(session, frames)


def loaded(session, num_weights, folder, size=SIZE):
    save_file(weights_of(4, num_weights, size), folder / f"{num_weights}.safetensors")
    return session.load(
        executable(4, num_weights, size), params=folder / f"{num_weights}.safetensors"
    )


def state_of(main):
    """A result that lies with the workers; the next call needs nothing else."""
    x = np.arange(4 * SIZE, dtype="float32").reshape(4, SIZE)
    state = main(main(x))
    np.testing.assert_array_equal(state.numpy(), x)  # w0 is zero
    return state


def test_a_call_is_one_message_that_does_not_name_weights(counted, tmp_path):
    session, counts = counted
    sent = {}
    for num_weights in (1, 40):
        main = loaded(session, num_weights, tmp_path)["main"]
        state = state_of(main)
        frames, sent[num_weights], _ = counts.during(lambda: main(state))  # noqa: B023
        assert frames == 1
    assert len(set(sent[1])) == 1, "all workers are sent the same"
    assert max(sent[40]) < max(sent[1]) + 40


def test_shards_of_inputs_are_a_message_each(counted, tmp_path):
    """As many as differ: here four; of an input that all have whole, one."""
    session, counts = counted
    main = loaded(session, 1, tmp_path)["main"]
    x = np.ones((4, SIZE), "float32")
    main(x)
    frames, sent, _ = counts.during(lambda: main(x))
    assert frames == 4
    assert max(sent) < 1000


def test_a_load_names_each_weight_once_for_all_workers(counted, tmp_path):
    session, counts = counted
    frames, sent, received = counts.during(lambda: loaded(session, 40, tmp_path))
    assert frames == 2, "of weights, and of the program"
    assert len(set(sent)) == 1
    frames, with_one, _ = counts.during(lambda: loaded(session, 1, tmp_path))
    assert frames == 2
    assert sent[0] - with_one[0] < 39 * 400, "of a weight where it is, and how it is cut"
    assert max(received) < 10_000


def test_a_host_is_sent_everything_once(counted, counted_hosts, tmp_path):
    """As much as a single worker would be, with a few bytes that say for whom it is."""
    of_kind = {}
    for kind, (session, counts) in (("worker", counted), ("host", counted_hosts)):
        model = {}
        load = counts.during(lambda: model.update(it=loaded(session, 20, tmp_path)))  # noqa: B023
        state = state_of(model["it"]["main"])
        call = counts.during(lambda: model["it"]["main"](state))  # noqa: B023
        of_kind[kind] = load, call
    assert len(of_kind["host"][0][1]) == 2, "a stream for each host"
    for by_worker, by_host in zip(of_kind["worker"], of_kind["host"], strict=True):
        assert abs(by_worker[0] - by_host[0]) <= 1  # hosts are asked what their files are
        assert max(by_host[1]) < max(by_worker[1]) + 200 * (1 + by_host[0])
    # Two workers have different rows, which come with their answers.
    assert max(of_kind["host"][1][2]) < 2 * (max(of_kind["worker"][1][2]) + 200)


def test_weights_in_files_do_not_go_through_the_controller(counted_hosts, tmp_path):
    session, counts = counted_hosts
    size = 1 << 16
    _, sent, received = counts.during(lambda: loaded(session, 4, tmp_path, size))
    assert 4 * 4 * size * 4 == 4 << 20
    assert max(sent) + max(received) < 200_000


@pytest.mark.slow
def test_256_worker_processes():
    """Their memory is reported in docs/scale.md."""
    count = 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * count:
        pytest.skip(f"a process may open {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * count), hard))
    x = np.arange(count * SIZE, dtype="float32").reshape(count, SIZE)
    before = psutil.Process().num_fds()
    with Session(count, workers="processes") as session:
        assert psutil.Process().num_fds() - before < 2 * count
        model = session.load(executable(count, 2), weights_of(count, 2))
        for _ in range(3):
            np.testing.assert_array_equal(model["main"](x).numpy(), x)
    assert psutil.Process().num_fds() <= before + 2
