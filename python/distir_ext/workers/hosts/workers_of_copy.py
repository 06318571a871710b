"""Runs workers as threads of a script's copies, for libraries such as MPI.

MPI connects the processes that it has started. So the workers of these, which otherwise are
processes of their own, run here; all else about them is the same.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence

import tvm_ffi

from distir_ext.wire.byte_stream import Stream
from distir_ext.workers.base import LEAVE_LIMIT, UNWIND_LIMIT
from distir_ext.workers.host_processes import KeyedSocket, LocalProcesses
from distir_ext.workers.worker_process import serve


class WorkersOfCopy(LocalProcesses):
    """Worker threads of this process.

    Args:
        num_workers: Of the session, on all hosts.
        imports: Names of modules that are imported first.
    """

    def __init__(self, num_workers: int, imports: Sequence[str]) -> None:
        super().__init__(num_workers, imports)
        self._threads: dict[int, threading.Thread] = {}

    def start(
        self, rank: int, channel: socket.socket, peers: Mapping[int, KeyedSocket] | None = None
    ) -> None:
        """Starts a worker.

        Args:
            rank: The worker.
            channel: Its end of the channel to the agent; its own from now on.
            peers: None: the communication library reaches workers of other hosts.
        """
        board = tvm_ffi.get_global_func("distir.runtime.process_board_descriptor")(self.board)
        stream = Stream(channel)

        def run() -> None:
            try:
                serve(rank, stream, board, {}, {}, self.imports)
            finally:
                stream.hang_up()

        thread = threading.Thread(target=run, daemon=True, name=f"distir worker {rank}")
        self._threads[rank] = thread
        thread.start()

    def has_started(self, rank: int) -> bool:
        return rank in self._threads

    def how_it_ended(self, rank: int) -> str:
        self._threads[rank].join(UNWIND_LIMIT)
        return f"its thread of process {os.getpid()} has ended"

    def kill(self) -> None:
        self.abort()  # nothing ends a thread that computes

    def close(self) -> None:
        deadline = time.monotonic() + LEAVE_LIMIT
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads.values()):
            self.abort()
        self.forget()
