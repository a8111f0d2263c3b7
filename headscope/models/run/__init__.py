"""A model in memory, and everything that runs it.

Through our attention, changed, recorded, watched, played back, or several batches at a time.
"""
