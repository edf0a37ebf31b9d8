"""What every Python of a worker runs before the script; the agent puts this folder at the front of its PYTHONPATH."""
