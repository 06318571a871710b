"""Where this process is among the copies of a script that a launcher has started."""
