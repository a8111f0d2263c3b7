"""A model in memory, and everything that runs it.

``loaded.py`` is the model, ``wrapping.py`` makes one of a network. ``routing.py`` lets it run
through our attention, and ``intervene.py`` with changes, such as those of ``formulas.py``. A pass
may be recorded (``recording.py``), watched (``watched.py``) or partly played back (``replay.py``),
and several batches may run at a time (``side_by_side.py``).
"""
