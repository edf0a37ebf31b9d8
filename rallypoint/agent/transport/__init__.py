"""How agents and the coordinator speak: one service, gRPC and HTTP, leases, and who is who."""
