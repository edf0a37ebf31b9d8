"""Connections: their fields, their form and test, and the place of jobs that they describe."""
