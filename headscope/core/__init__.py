"""What every room may use: options as fields of a dataclass."""
