"""The nine tasks that a model is measured by, behind one interface.

``fidelity`` needs nothing but text; ``mlm`` and ``classification`` need a model with that head;
``similarity`` needs pairs with a gold score, ``retrieval`` queries with documents, ``rerank`` these
and a cross-encoder, ``token-classification`` tagged words, ``question-answering`` questions with
contexts, both with a model that has such a head, ``seq2seq`` an encoder-decoder model and pairs of
source and target.

Read :mod:`.base` first, then one task, such as :mod:`.labelled_tasks`; :mod:`.making` makes a task
from its name and a file. :mod:`.loss_batches`, :mod:`.gauss_newton` and :mod:`.calibration` serve
those who choose heads by a task; :mod:`.units` says what can be removed on its own.
"""
