"""Proof of everything that is CUDA's or NCCL's own: `python -m benchmarks.gpu`, or `make gpu` (docs/benchmarks/gpu.md)."""
