"""``distir launch``: what it prints, what it returns, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

RANK = "import os, sys, time\nrank = int(os.environ['DISTIR_EXT_RANK'])\n"


@pytest.fixture(autouse=True)
def signals_of_a_terminal(ctrl_c):
    """Signals that nohup and systems of CI have ignored, which processes inherit."""
    numbers = (signal.SIGHUP, signal.SIGQUIT)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def launch(tmp_path):
    """Starts copies of a script of these lines."""

    def start(lines: str, count: int = 3, arguments: tuple[str, ...] = (), **options):
        script = tmp_path / "script.py"
        script.write_text(RANK + lines)
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "distir_ext", "launch"),
                *("--nproc", str(count), str(script), *arguments),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            **options,
        )

    return start


def outcome(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_lines_begin_with_the_rank(launch):
    status, out, err = outcome(
        launch(
            "print('out', sys.argv[1:])\nprint('err', file=sys.stderr)\n"
            "sys.stdout.write('no end of line')",
            arguments=("--nproc", "x y"),
        )
    )
    assert status == 0
    expected = [f"[{rank}] out ['--nproc', 'x y']" for rank in range(3)]
    expected += [f"[{rank}] no end of line" for rank in range(3)]
    assert sorted(out.splitlines()) == sorted(expected)
    assert sorted(err.splitlines()) == [f"[{rank}] err" for rank in range(3)]


def test_copies_know_their_place_and_have_one_token(launch):
    _, out, _ = outcome(
        launch(
            "e = os.environ\nprint(e['DISTIR_EXT_WORLD_SIZE'], e['DISTIR_EXT_LEADER'], "
            "e['DISTIR_EXT_TOKEN'], 'DISTIR_EXT_TOKEN_FILE' in e, 'DISTIR_EXT_LISTENER' in e)"
        )
    )
    lines = [line.split() for line in sorted(out.splitlines())]
    assert [line[0] for line in lines] == ["[0]", "[1]", "[2]"]
    assert len({tuple(line[1:4]) for line in lines}) == 1
    assert lines[0][1] == "3"
    assert len(lines[0][3]) == 64
    assert [line[5] for line in lines] == ["True", "False", "False"]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("sys.exit(5) if rank == 1 else time.sleep(100)", 5),
        ("os.kill(os.getpid(), 9) if rank == 2 else time.sleep(100)", 137),
        (
            "import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
            "time.sleep(0.5)\nsys.exit(4) if rank == 0 else time.sleep(100)",
            4,
        ),
    ],
)
def test_the_first_failure_ends_all(launch, lines, status):
    begun = time.monotonic()
    assert outcome(launch(lines))[0] == status
    assert time.monotonic() - begun < 30


def test_a_copy_that_is_killed_is_named_and_rank_0_says_its_own_error(launch):
    process = launch(
        "print(os.getpid(), flush=True)\n"
        "os.kill(os.getpid(), 9) if rank == 2 else time.sleep(1 if rank == 0 else 100)\n"
        "sys.exit('rank 2 is lost')"
    )
    status, out, errors = outcome(process)
    (pid,) = (line.split()[1] for line in out.splitlines() if line.startswith("[2]"))
    assert status == 137
    first, second = errors.splitlines()
    assert first.startswith(f"distir launch: rank 2 (pid {pid}) was ended by SIGKILL")
    assert second == "[0] rank 2 is lost"


def started(process, count):
    """The copies' process ids, which each of them prints."""
    found = [int(process.stdout.readline().split()[1]) for _ in range(count)]
    return [psutil.Process(pid) for pid in found]


SLEEPS = "import subprocess\nprint(os.getpid())\ntime.sleep(100)"


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL]
)
def test_nothing_is_left_behind(launch, number):
    process = launch(SLEEPS, 2)
    copies = sorted(started(process, 2), key=lambda copy: copy.pid)  # by rank
    process.send_signal(number)
    status, _, errors = outcome(process)
    assert status == (-9 if number == signal.SIGKILL else 128 + number)
    named = ", ".join(f"rank {rank} (pid {copy.pid})" for rank, copy in enumerate(copies))
    line = f"distir launch: {signal.Signals(number).name} has come, and is sent to {named}"
    assert (line in errors.splitlines()) == (number != signal.SIGKILL)
    _, alive = psutil.wait_procs(copies, 10)
    assert alive == []


def test_what_the_launcher_ignores_it_goes_on_to_ignore(launch):
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = launch(SLEEPS, 2)
    finally:
        signal.signal(signal.SIGHUP, before)
    started(process, 2)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    process.terminate()
    status, _, errors = outcome(process)
    assert status == 128 + signal.SIGTERM
    assert "SIGHUP" not in errors


def test_a_line_without_end_is_passed_on_in_parts(launch):
    """In time that grows with its length, and memory that does not."""
    status, out, _ = outcome(launch("for _ in range(48):\n    os.write(1, b'x' * 2**19)", 2))
    assert status == 0
    for rank in range(2):
        lines = [line[4:] for line in out.splitlines() if line.startswith(f"[{rank}] ")]
        assert sum(map(len, lines)) == 48 * 2**19
        assert set("".join(lines)) == {"x"}
        assert max(map(len, lines)) <= 2**20 + 2**16


@pytest.mark.large
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_counts_while_nobody_reads(launch, number):
    process = launch("print(os.getpid())\nwhile True:\n    print('x' * 999)", 2)
    copy = psutil.Process(int(process.stdout.readline().split()[1]))
    time.sleep(1.0)  # the pipe is full
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    assert not copy.is_running()
    process.stdout.close()
    process.stderr.close()


@pytest.mark.large
def test_who_ignores_signals_is_killed(launch):
    process = launch(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(os.getpid())\n"
        "sys.exit(3) if rank == 0 and not time.sleep(0.5) else time.sleep(100)",
        2,
    )
    copies = started(process, 2)
    assert outcome(process)[0] == 3
    assert not any(copy.is_running() for copy in copies)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nproc", "0", "script.py"], "'0' is no number of copies"),
        (["--nproc", "two", "script.py"], "'two' is no number of copies"),
        (["--nproc", "2", "missing.py"], "there is no script missing.py"),
        (["script.py"], "--nproc"),
    ],
)
def test_wrong_arguments(arguments, words, capsys):
    from distir_ext import cli

    try:
        status = cli.main(["launch", *arguments])
    except SystemExit as end:
        status = end.code
    assert status != 0
    assert words in capsys.readouterr().err
