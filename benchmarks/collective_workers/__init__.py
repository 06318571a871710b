"""Programs that the workers of ``collectives.py`` run."""
