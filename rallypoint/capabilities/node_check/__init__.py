"""The node check: nodes are tested in pairs before they train, and nodes that fail are replaced (docs/guides/node-check.md)."""
