"""How it is done: each backend behind one small contract, and the one supervision loop that drives them all."""
