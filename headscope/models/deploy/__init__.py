"""Folders that other programs open: transformers, sentence-transformers, with headscope or not."""
