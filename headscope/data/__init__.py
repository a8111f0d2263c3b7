"""What goes in: texts, treebanks and tables, until they are padded batches of token ids.

In the order in which data pass through these modules:

* reading a file: :mod:`.files`, :mod:`.json_rows`, :mod:`.columns` and :mod:`.tables`,
  :mod:`.tag_columns` and :mod:`.tag_json`, :mod:`.treebanks`;
* text to look at heads with: :mod:`.sentences`, :mod:`.corpus`, a user's own pairs of words
  (:mod:`.pairs`, :mod:`.cross_pairs`), :mod:`.frequencies`;
* examples to measure a task on: :mod:`.examples`, :mod:`.queries`, :mod:`.annotated`, with
  :mod:`.labels` and :mod:`.entities`; :mod:`.unshared` and :mod:`.halves` keep them apart;
* token ids: :mod:`.pieces`, :mod:`.token_types`, :mod:`.word_pieces`, :mod:`.token_rows`,
  :mod:`.packing`;
* batches: :mod:`.batches`, with :mod:`.edge_trials` and :mod:`.controls`.
"""
