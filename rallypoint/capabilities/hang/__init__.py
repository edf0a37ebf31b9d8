"""Hang detection: a world without a sign of life is looked into, reported and restarted (docs/guides/hangs.md)."""
