"""What sensors wait for: conditions, how a job is judged by them, and one look at a job for all who wait for it."""
