"""The command line: one module per command, options and output shared."""
