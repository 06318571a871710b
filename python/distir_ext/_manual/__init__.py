"""Behind manual regions: which one is being written, and its operators."""
