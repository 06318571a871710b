"""Compilation by ``build`` for each target: kernels, libraries, schedules and checks."""
