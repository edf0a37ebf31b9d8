"""How agents and the coordinator speak: one service, HTTP, leases, and who is who."""
