"""The nine tasks that a model is measured by, behind one interface.

``fidelity`` needs nothing but text; ``mlm`` and ``classification`` need a model with that head;
``similarity`` needs pairs with a gold score, ``retrieval`` queries with documents, ``rerank`` these
and a cross-encoder, ``token-classification`` tagged words, ``question-answering`` questions with
contexts, both with a model that has such a head, ``seq2seq`` an encoder-decoder model and pairs of
source and target.
"""
