"""Worker commands: pause, resume, save and stop, sent to all workers of a job."""
