"""Processes of one node: started, watched, logged and stopped down to the last."""
