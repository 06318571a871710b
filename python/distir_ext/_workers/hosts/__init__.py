"""Workers on several hosts."""
