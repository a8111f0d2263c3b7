"""Claims of the literature, tested on a model: a module each.

``bounds.toml`` names the modules and holds the defaults of their bounds. A new claim is a module
that ends in a ``CLAIM``, such as :mod:`~headscope.reports.claims.interference`, and a table there.

``rule.py`` says what a claim consists of, ``interference.py`` is an example, and ``run.py``
measures what the claims need and has each of them judged.
"""
