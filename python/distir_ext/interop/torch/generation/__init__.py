"""Generation of tokens by models of transformers on workers.

Sizes (``settings.py``); what a model keeps between steps (``caches.py``), how it masks it
(``masks.py``) and how it is sharded (``shardings.py``); the programs (``steps.py``,
``programs.py``); what calls them (``generator.py``, ``worker_cache.py``) and says how long it took
(``report.py``); models of folders (``folders.py``).
"""
