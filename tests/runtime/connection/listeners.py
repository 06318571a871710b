"""Servers that tests connect to: a listener, an agent in this process, a relay between."""

from __future__ import annotations

import contextlib
import socket
import threading

from distir_ext.wire import byte_stream
from distir_ext.wire.byte_stream import Stream
from distir_ext.wire.connections import format_address, listen, parse_address
from distir_ext.wire.credentials import Credentials
from distir_ext.wire.handshake import NotConnectedError
from distir_ext.workers.hosts.host_agent import HostAgent

TOKEN = Credentials(b"one token of sixteen")


@contextlib.contextmanager
def answering(serve):
    """The address of something that serves connections, one after the other; what it raised."""
    raised = []

    def run():
        with contextlib.suppress(OSError):
            while True:
                raw, _ = listener.accept()
                with raw:
                    try:
                        serve(Stream(raw))
                    except (NotConnectedError, OSError, EOFError) as error:
                        raised.append(str(error))

    with listen("127.0.0.1:0") as listener:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield format_address(listener.getsockname()), raised
        finally:
            byte_stream.interrupt(listener)
            thread.join(10)


@contextlib.contextmanager
def running_agent(credentials=TOKEN):
    agent = HostAgent("127.0.0.1:0", credentials)
    thread = threading.Thread(target=agent.serve, daemon=True)
    thread.start()
    try:
        yield agent
    finally:
        agent.close()
        thread.join(10)


def pass_on(one, other, change=lambda part, forth: part):
    """Each side gets what the other one says, as changed."""

    def pump(source, target, forth):
        with contextlib.suppress(OSError):
            while part := source.recv(1 << 16):
                target.sendall(change(part, forth))
        byte_stream.interrupt(target)

    back = threading.Thread(target=pump, args=(other, one, False), daemon=True)
    back.start()
    pump(one, other, True)
    back.join()
    one.close()
    other.close()


@contextlib.contextmanager
def relay(to, change=lambda part, forth: part):
    """The address of something that passes every connection on to an address, as changed."""
    threads = []

    def accept():
        with contextlib.suppress(OSError):
            while True:
                raw, _ = listener.accept()
                other = socket.create_connection(parse_address(to))
                threads.append(
                    threading.Thread(target=pass_on, args=(raw, other, change), daemon=True)
                )
                threads[-1].start()

    with listen("127.0.0.1:0") as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield format_address(listener.getsockname())
        finally:
            byte_stream.interrupt(listener)
            for thread in [accepting, *threads]:
                thread.join(10)
