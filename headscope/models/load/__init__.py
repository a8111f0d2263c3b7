"""Opening a model: its folder is found, checked before anything is built, and read.

``loading.py`` has the steps in their order: ``source.py`` finds the folder, ``checkpoint.py`` and
``sizes.py`` check it, ``tokenizer.py`` and ``network.py`` read it. A folder that headscope cut is
built whole, cut as ``manifest.py`` reads, and only then given its weights. What a
sentence-transformers folder says besides is in ``sentence_files.py`` and ``sentence_folder.py``.
"""
