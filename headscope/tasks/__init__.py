"""The five tasks that a model is measured by, behind one interface.

``fidelity`` needs nothing but text; ``mlm`` and ``classification`` need a model with that head;
``similarity`` needs pairs with a gold score, ``seq2seq`` an encoder-decoder model and pairs of
source and target.
"""
