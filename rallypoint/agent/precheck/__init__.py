"""Pre-check operators: classes that are asked before training begins, in a process of their own."""
