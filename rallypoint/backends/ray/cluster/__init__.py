"""What runs inside of a Ray cluster: the ledger and the node actors. Only this package imports ray."""
