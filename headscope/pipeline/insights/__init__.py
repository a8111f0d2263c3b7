"""``headscope insights`` and the measurement that it makes itself."""
