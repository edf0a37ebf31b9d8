"""Conditions of sensors, their evaluation, and one observation of a job for all sensors that wait for it."""
