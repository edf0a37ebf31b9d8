"""What is seen of a job: watches that all jobs of a process share, what they say of its pods, and the output of its ranks."""
