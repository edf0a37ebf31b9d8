"""The `rallypoint` command."""
