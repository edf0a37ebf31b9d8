"""A Kubernetes API server in memory and a kubelet whose containers are local processes: a cluster for tests, without one.

`tests.emulator.running` starts one in a thread of its own; `python -m tests.emulator` in a process of its own.
"""
