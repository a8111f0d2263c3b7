"""How many dimensions W_Q W_K^T and W_V W_O use."""
