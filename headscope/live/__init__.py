"""``headscope serve``: a page on this machine that answers for sentences as they are typed."""
