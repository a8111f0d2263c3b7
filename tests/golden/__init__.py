"""The golden record: what every command prints and writes on fixed models, kept to compare with.

``PYTHONPATH=tests python -m golden compare`` says what changed. It knows only the program
``headscope`` and the files that it writes, so it outlives any change of the package's insides.
"""
