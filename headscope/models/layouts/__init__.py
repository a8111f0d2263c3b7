"""Attention layouts: where each family keeps W_Q, W_K, W_V and W_O, and how it makes scores.

One small row per attention layout, not per model. To read in this order:

* ``maps.py``: what a stored map is, and which of its rows a head owns;
* ``map_names.py``: how a family names its maps, and what a head owns of them;
* ``layout.py``: what a layout is: such names, and a list of steps between the maps and the scores;
* ``steps.py``: the steps that families share;
* ``registry.py``: the rows themselves, and ``families.py``: the families that they are tested with;
* ``sites.py``: where attention runs in a model.

``fused.py`` says how q, k and v may share a tensor, ``grouped.py`` how heads may share keys,
``forwards.py`` how a module is called, ``positions.py`` what a configuration says of positions. A
family that does more than names and steps can say has a file of its own name.
"""
