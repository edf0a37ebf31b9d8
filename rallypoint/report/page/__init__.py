"""The page of one job as plain values, for the tab and for publication by a task. Pure except for reading the backend."""
