"""``distir host``, which cuts its lines to another host when it is told to.

Whoever sends it SIGUSR1 has put the port of that host into the file ``port`` of its directory.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
from pathlib import Path
from typing import Any


def cut(*_: Any) -> None:
    """Ends the connections of this process to the port; the processes at both ends live on."""
    port = int(Path("port").read_text())
    for each in Path("/proc/self/fd").iterdir():
        try:
            with socket.socket(fileno=os.dup(int(each.name))) as line:
                if line.family == socket.AF_INET and line.getpeername()[1] == port:
                    line.shutdown(socket.SHUT_RDWR)
        except OSError:  # no socket, or not connected
            continue


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, cut)
    runpy.run_module("distir_ext", run_name="__main__", alter_sys=True)
