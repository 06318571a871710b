"""Loaded programs: global arrays in and out, and microbatches through the stages of a pipeline."""
