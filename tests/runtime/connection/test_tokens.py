"""Tokens: how they are made and read, which are refused, and who does not get them."""

from __future__ import annotations

import os
import secrets
import stat
import string

import pytest

import distir_ext as dx
from distir_ext import cli
from distir_ext.wire.credentials import Credentials
from distir_ext.wire.tokens import TOKEN_VARIABLE, make_token, read_token
from distir_ext.workers.host_processes import KeyedSocket
from distir_ext.workers.hosts.openings import PeerOpening

MAKES_ONE = "make .*: distir token FILE"


@pytest.fixture
def token_file(tmp_path):
    def write(content, mode=0o600):
        path = tmp_path / "token"
        path.write_bytes(content)
        path.chmod(mode)
        return path

    return write


def test_the_command_makes_one(tmp_path, capsys):
    path = tmp_path / "token"
    umask = os.umask(0)
    try:
        assert cli.main(["token", str(path)]) == 0
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = read_token(path)
    assert len(bytes.fromhex(token.decode())) == 32
    assert cli.main(["token", str(path)]) == 1
    assert "distir token: no token was made: " in capsys.readouterr().err
    assert read_token(path) == token
    make_token(tmp_path / "other")
    assert read_token(tmp_path / "other") != token


def test_no_token_is_written_through_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"):
        make_token(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_where_it_comes_from(token_file, tmp_path, monkeypatch):
    one, other = secrets.token_hex(16), secrets.token_urlsafe(22)
    monkeypatch.setenv(TOKEN_VARIABLE, f" {other}\n")
    assert read_token(token_file(f" {one}\n".encode())) == one.encode()
    assert read_token(None) == other.encode()
    with pytest.raises(OSError, match="nowhere"):
        read_token(tmp_path / "nowhere")
    monkeypatch.delenv(TOKEN_VARIABLE)
    with pytest.raises(ValueError, match=f"hosts need a token .*{MAKES_ONE}"):
        read_token(None)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o677])
def test_files_that_others_may_read_or_write(token_file, mode):
    path = token_file(secrets.token_hex().encode(), mode)
    with pytest.raises(ValueError, match=f"others than its owner .*{mode:04o}.*{MAKES_ONE}"):
        read_token(path)


def test_file_of_somebody_else(token_file, monkeypatch):
    """Only root can read one; who it belongs to knows the token, too."""
    path = token_file(secrets.token_hex().encode())
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    if path.stat().st_uid == 0:
        read_token(path)
        os.chown(path, 1234, -1)
    owner = path.stat().st_uid
    with pytest.raises(ValueError, match=rf"is somebody else's \(user {owner}\).*{MAKES_ONE}"):
        read_token(path)


def test_no_token_or_key_is_shown():
    """In what a debugger, or a traceback with variables, says of them."""
    for shown in (
        Credentials(b"secret" * 8),
        PeerOpening("s", 0, 1, b"secret"),
        KeyedSocket(None, b"secret"),
    ):
        assert "secret" not in repr(shown)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a" * 1000,
        "0123456" * 30,  # a few characters, over and over
        "0123456789abcdef0123456789abcde",  # 124 bits
        "12345678901234567890123456789012345678",  # 126 bits
        "correct horse batt",  # 119 bits, were it random
        string.ascii_lowercase,  # 122 bits
    ],
)
def test_tokens_that_can_be_guessed(token_file, token, monkeypatch):
    match = rf"can be guessed: it has \d+ bits, fewer than 128; {MAKES_ONE}"
    with pytest.raises(ValueError, match=match):
        read_token(token_file(token.encode()))
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    with pytest.raises(ValueError, match=match):
        read_token(None)


def test_what_is_no_file_of_a_token(token_file, tmp_path):
    for content in (b"\xff" * 64, b"0123456789abcdef" * 1000):
        with pytest.raises(ValueError, match=f"token has no token; {MAKES_ONE}"):
            read_token(token_file(content))
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        read_token(tmp_path / "pipe")


def test_a_host_without_a_good_token_does_not_start(token_file, capsys):
    path = token_file(b"0123456789abcdef")
    assert cli.main(["host", "--bind", "127.0.0.1:0", "--token-file", str(path)]) == 1
    assert "distir host: the token in" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["here", "on a host"])
def test_workers_do_not_inherit_the_variable(where, agents):
    """The controller has it, and the agent was started with it."""
    assert os.environ[TOKEN_VARIABLE]
    workers = "processes" if where == "here" else dx.Hosts([agents[0].address])
    with dx.Session(1, workers=workers, imports=["worker_functions"]) as session:
        (found,) = session._workers.run("v", ["distir.test.variable"], [[TOKEN_VARIABLE]])
        assert found == ""
        (found,) = session._workers.run("v", ["distir.test.variable"], [["PATH"]])
        assert found == os.environ["PATH"]


@pytest.mark.parametrize("mode", [0o640, 0o660, 0o604, 0o602, 0o644])
def test_private_keys_that_others_may_read_or_write(tmp_path, mode):
    key = tmp_path / "own key.pem"
    key.write_text("of a host")
    key.chmod(mode)
    credentials = Credentials(b"", True, tmp_path / "none.pem", key)
    if mode == 0o640 and os.geteuid() == 0:  # of a group that root trusts
        expected = "none.pem has no certificate"
    else:
        expected = rf"others than its owner .*{mode:04o}.*chmod 6[04]0 '.*/own key.pem'"
    with pytest.raises(ValueError, match=expected):
        _ = credentials.identity
    key.chmod(0o600)
    with pytest.raises(ValueError, match=r"none.pem has no certificate"):
        _ = credentials.identity


def test_private_key_of_somebody_else(tmp_path, monkeypatch):
    key = tmp_path / "own.key"
    key.write_text("of a host")
    key.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    if key.stat().st_uid == 0:
        os.chown(key, 1234, -1)
    with pytest.raises(ValueError, match=r"own.key is somebody else's \(user "):
        _ = Credentials(b"", True, tmp_path / "none.pem", key).identity
