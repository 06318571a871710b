"""Programs that the benchmarks measure."""
