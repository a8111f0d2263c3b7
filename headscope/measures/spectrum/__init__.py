"""How low the rank of a softmax matrix is, and what could replace it."""
