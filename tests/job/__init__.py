"""The job: documents, durations, errors, plans."""
