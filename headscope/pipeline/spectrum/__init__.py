"""``headscope spectrum`` and its parts."""
