"""A model in memory, and everything that runs it.

``loaded.py`` is the model, ``wrapping.py`` makes one of a network. ``routing.py`` lets it run
through our attention, and ``intervene.py`` with changes, such as those of ``formulas.py``. A pass is
recorded (``recording.py``), watched (``watched.py``), partly played back (``replay.py``), or run for
several batches at a time (``side_by_side.py``).
"""
