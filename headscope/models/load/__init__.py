"""Opening a model: its folder is found, checked before anything is built, and read.

A folder that headscope cut is built whole, cut, and only then given its weights.
"""
