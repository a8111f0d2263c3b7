"""The grammar that generated most of the built-in sample treebank."""
