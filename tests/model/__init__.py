"""A job in a world that fails at every moment: an explicit model around the real cores, and its explorer."""
