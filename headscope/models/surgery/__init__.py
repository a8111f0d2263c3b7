"""Changed copies of a model: without heads, neurons or layers.

``copies`` (heads, by ``cutting``), ``neurons`` and ``layers`` (found by ``layer_stacks``) remove
parts; ``copies`` also casts and draws random weights. ``output_maps`` exchanges W_O, and
``trainable`` says which parameters a way of fine-tuning trains.
"""
