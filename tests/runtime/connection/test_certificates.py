"""Who connects with which certificate: strangers, old versions of TLS, one's own authority."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
import warnings
from dataclasses import replace

import pytest
from tests.runtime.connection.listeners import TOKEN, running_agent
from tests.runtime.connection.test_handshake import OPENING

from distir_ext import cli
from distir_ext.wire.byte_stream import Stream
from distir_ext.wire.connections import parse_address
from distir_ext.wire.credentials import Credentials
from distir_ext.wire.handshake import NotConnectedError, connect
from distir_ext.wire.tls import Tls, WaitingError, make_identity
from distir_ext.workers.hosts import host_agent

SAFE = replace(TOKEN, tls=True)


def run_openssl(directory, *arguments):
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Of an authority, of 127.0.0.1 and of another host, signed by it."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl")
    here = tmp_path_factory.mktemp("certificates")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    run_openssl(here, "req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem",
                "-subj", "/CN=authority")  # fmt: skip
    for name, alternative in (("own", "IP:127.0.0.1"), ("other", "DNS:other.example")):
        run_openssl(here, "req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr",
                    "-subj", f"/CN={name}")  # fmt: skip
        (here / "extensions").write_text(f"subjectAltName={alternative}")
        run_openssl(here, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                    "-CAcreateserial", "-extfile", "extensions", "-out", f"{name}.pem")  # fmt: skip
    return here


HELLO_OF_TLS = b"distir\x00\x02" + struct.pack("<B?32sB", 0, True, bytes(32), 1) + b"x"


def begin(agent):
    """A socket on which an agent waits for TLS."""
    raw = socket.create_connection(parse_address(agent.address))
    raw.settimeout(10)
    raw.sendall(HELLO_OF_TLS)
    left = 41
    while left:
        left -= len(raw.recv(left))
    return raw


def strange_context(certificates=None):
    """Python's own TLS, as a stranger has it, with a certificate or without."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificates is not None:
        context.load_cert_chain(certificates / "own.pem", certificates / "own.key")
    return context


def test_strangers_with_a_certificate_get_as_far_as_the_proof(certificates):
    with running_agent(SAFE) as agent, begin(agent) as raw:
        with strange_context(certificates).wrap_socket(raw) as stream:
            assert stream.version() == "TLSv1.3"
            assert len(stream.recv(100)) == 32  # the agent's proof
            stream.sendall(bytes(32))
            assert stream.recv(100) == b""
        assert not agent._sessions


def test_an_old_version_of_tls(certificates):
    context = strange_context(certificates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        running_agent(SAFE) as agent,
        begin(agent) as raw,
        pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"),
    ):
        context.wrap_socket(raw)


def test_who_connects_without_a_certificate():
    with (
        running_agent(SAFE) as agent,
        begin(agent) as raw,
        strange_context().wrap_socket(raw) as stream,
        pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"),
    ):
        stream.recv(1)


def test_half_a_record_and_then_silence(monkeypatch):
    monkeypatch.setattr(host_agent, "HANDSHAKE_LIMIT", 0.3)
    with running_agent(SAFE) as agent, begin(agent) as raw:
        raw.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
        begun = time.monotonic()
        assert raw.recv(1) == b""
        assert time.monotonic() - begun < 3


def test_new_keys_without_end_do_not_hold_a_deadline_up(certificates):
    """They are no data, so OpenSSL reads on for as long as there are any."""
    library = ctypes.CDLL("libssl.so.3")
    for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
        getattr(library, name).restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_client_method())))
    for kind, file in (("certificate", "own.pem"), ("PrivateKey", "own.key")):
        use = getattr(library, f"SSL_CTX_use_{kind}_file")
        assert use(context, os.fsencode(certificates / file), 1) == 1
    stranger = ctypes.c_void_p(library.SSL_new(context))
    raw, theirs = socket.socketpair()
    for each in (raw, theirs):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    library.SSL_set_fd(stranger, theirs.fileno())
    tls = Tls.of_identity(raw.fileno(), False, make_identity(), "")
    stream = Stream(raw)
    stream.limit(10)
    connecting = threading.Thread(target=library.SSL_connect, args=(stranger,))
    connecting.start()
    stream.secure(tls)
    connecting.join()
    theirs.setblocking(False)
    while library.SSL_key_update(stranger, 0) == 1:
        if library.SSL_do_handshake(stranger) != 1:
            break  # the socket is full
    count = 0
    with pytest.raises(WaitingError):
        tls.recv_into(memoryview(bytearray(1)))
    raw.setblocking(False)
    while True:
        try:
            count += len(raw.recv(1 << 20))
        except BlockingIOError:
            break
    assert count > 0  # that were left for another time, before which a deadline may be over
    library.SSL_free(stranger)
    library.SSL_CTX_free(context)
    raw.close()
    theirs.close()


def credentials_of(certificates, name):
    return Credentials(
        TOKEN.token,
        True,
        certificates / f"{name}.pem",
        certificates / f"{name}.key",
        certificates / "ca.pem",
    )


def test_own_certificates_of_an_authority(certificates):
    own, other = (credentials_of(certificates, name) for name in ("own", "other"))
    with running_agent(own) as agent:
        connect(agent.address, own, "session", OPENING).close()
        connect(agent.address, other, "session", OPENING).close()  # who connects has no address
        with pytest.raises(NotConnectedError):
            connect(agent.address, SAFE, "session", OPENING)
    with running_agent(other) as agent:
        with pytest.raises(NotConnectedError, match=r"certificate verify failed: .*mismatch"):
            connect(agent.address, own, "session", OPENING)
        connect(agent.address, replace(own, authority=None), "session", OPENING).close()
    with (
        running_agent(SAFE) as agent,
        pytest.raises(NotConnectedError, match=r"verify failed: self.signed certificate"),
    ):
        connect(agent.address, own, "session", OPENING)


def test_files_of_no_use(certificates, tmp_path, capsys):
    path, key = certificates / "own.pem", certificates / "own.key"
    cases = [
        (Credentials(TOKEN.token, True, tmp_path / "no", key), "no has no certificate"),
        (Credentials(TOKEN.token, True, path, certificates / "other.key"), "other.key does not"),
        (Credentials(TOKEN.token, True, path), "go together"),
        (Credentials(TOKEN.token, True, authority=key), "of an authority"),
    ]
    for credentials, match in cases:
        with pytest.raises(ValueError, match=match):
            _ = credentials.identity
    command = ["host", "--bind", "127.0.0.1:0", "--certificate", "nowhere", "--key", "nowhere"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTIR_EXT_TOKEN", "of tests, and of no use elsewhere")
        assert cli.main(command) == 1
    assert "distir host: nowhere has no certificate" in capsys.readouterr().err
