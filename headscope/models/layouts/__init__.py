"""Attention layouts: where each family keeps W_Q, W_K, W_V and W_O, and how it makes scores.

One small adapter per attention layout, not per model: ``maps.py`` says what stored maps are,
``layout.py`` what a layout is, ``registry.py`` lists them all, ``sites.py`` finds where attention
runs.
"""
