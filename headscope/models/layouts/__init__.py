"""Attention layouts: where each family keeps W_Q, W_K, W_V and W_O, and how it makes scores.

One small row per attention layout, not per model. ``registry.py`` lists them all, with the families
that are tested. ``layout.py`` says what a layout is: names, and a list of steps between the maps
and the scores, of which ``steps.py`` has those that families share. ``maps.py`` says what stored
maps are, ``fused.py`` and ``grouped.py`` how q, k and v may share a tensor, and heads keys;
``forwards.py`` reads how a module is called. ``sites.py`` finds where attention runs. A family that
does more than names and steps can say has a file of its own name.
"""
