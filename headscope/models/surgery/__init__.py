"""Changed copies of a model: without heads, neurons or layers.

Also with other output maps, in another floating-point type, or with random weights; and which
parameters a way of fine-tuning trains.
"""
