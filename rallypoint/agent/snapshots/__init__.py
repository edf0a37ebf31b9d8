"""The agent's part in snapshots: the folder that outlives workers, and what becomes of the last one when a worker dies."""
