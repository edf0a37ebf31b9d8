"""The page of one job as plain values: what the tab shows, and what a task publishes. Pure but for reading the backend."""
