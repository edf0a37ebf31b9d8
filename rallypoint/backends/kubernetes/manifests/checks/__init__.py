"""Checks of a job's pods, one file per subject. Pure."""
