"""The built-in English sample treebank and the grammar that generates most of it."""
