"""One function per command: load, stream, measure, result. The only place where floors meet."""
