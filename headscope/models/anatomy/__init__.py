"""The parts of a layer, found by watching a run and proven by putting them together again.

``layers.py`` finds them, ``feed_forward.py`` the neurons of their networks. They serve to take a
run's residual stream apart (``residual.py``) and what follows it (``readout.py``), and to explain
what one layer does with one sentence (``explain.py``).
"""
