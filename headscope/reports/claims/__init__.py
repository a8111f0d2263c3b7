"""Claims of the literature, tested on a model: a module each.

``rule.py`` says what a claim consists of, ``interference.py`` is an example, and ``run.py``
measures what the claims need and has each of them judged.

A new claim is a module that ends in a ``CLAIM``, and a table of ``bounds.toml``, which names the
modules in their order and holds the defaults of their bounds.
"""
