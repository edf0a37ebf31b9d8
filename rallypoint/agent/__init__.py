"""What runs inside a pod: the node agent and, once per job, the coordinator. No torch, no pydantic."""
