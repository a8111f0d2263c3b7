"""A model in memory, and everything that runs it.

It can run through our attention, with changes, recorded, watched, partly played back, or several
batches at a time.
"""
