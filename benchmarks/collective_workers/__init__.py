"""What the workers of ``collectives.py`` run."""
