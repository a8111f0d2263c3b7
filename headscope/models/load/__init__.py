"""Opening a model: its folder is found, checked before anything is built, and read.

A folder that headscope cut is filled up with zeros, read as if it were whole, and cut again.
"""
