"""Prometheus metrics of a job, on a port of the coordinator (docs/guides/metrics.md)."""
