"""The workers of a session: threads (``threads``), or processes of one host or of several.

``base`` says what a session asks of them. The controller's side of processes is ``processes``, with
what starts and ends them in ``host_processes`` and ``remote_processes``; a process itself is
``worker_process``, and ``host_agent`` is what ``distir host`` runs. In between are frames on
streams (``channel``, ``connections``, ``exchange``).
"""

SUPPORTED_WORKERS = ("threads", "processes")
