"""What goes in: corpora, treebanks, frequencies, word-to-piece alignment and padded batches."""
