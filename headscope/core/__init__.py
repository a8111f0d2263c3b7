"""What every other room may use: errors, files on disk, digests, processes. No torch."""
