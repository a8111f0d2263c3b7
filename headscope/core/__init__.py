"""What every other package may use: errors, files, processes, progress."""
