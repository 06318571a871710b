"""What is refused, how names are suggested, and where tracebacks end."""
