"""``headscope report`` and the patterns that its page shows."""
