"""What each head does: accumulators of one pass, and the labels made of them."""
