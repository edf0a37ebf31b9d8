"""Pre-check operators: classes of the user that the coordinator calls before training begins (docs/guides/pre-checks.md)."""
