"""The check of the nodes before they train: who is tried with whom, what follows from it, and the trying."""
