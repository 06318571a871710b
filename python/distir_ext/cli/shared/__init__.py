"""Parts that commands share: arguments, reading of files, output and failures."""
