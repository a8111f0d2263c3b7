"""``headscope rank`` and its parts."""
