"""What ``build`` does for each target: kernels, libraries, schedules, and what it checks."""
