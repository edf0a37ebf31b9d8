"""Speed claims are ratios against a peer, both measured in one run. `python -m benchmarks.NAME [--json FILE]`."""
