"""The tasks that a model is measured by, behind one interface, and what each needs.

========================  ==========================================================================
``fidelity``              any text
``mlm``                   any text, and a masked language model
``lm``, ``lm-accuracy``   any text, and a causal language model
``classification``        labelled sentences or pairs, and a model with that head
``similarity``            pairs with a gold score
``retrieval``             queries and documents with their relevance
``rerank``                the same, and a cross-encoder
``token-classification``  tagged words, and a model with that head
``question-answering``    questions with contexts, and a model with that head
``seq2seq``               pairs of source and target, and an encoder-decoder model
========================  ==========================================================================

Read :mod:`.base` first, then one task, such as :mod:`.labelled_tasks`; :mod:`.making` makes a task
from its name and a file. :mod:`.loss_batches`, :mod:`.gauss_newton` and :mod:`.calibration` are
used where heads are chosen by a task; :mod:`.units` says what can be removed on its own.
"""
