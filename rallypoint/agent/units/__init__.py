"""`rallypoint-agent host`: runs the instances of simple roles that share a node, each by itself."""
