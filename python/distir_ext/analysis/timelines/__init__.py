"""Timelines of simulated runs: their data, tables and traces."""
