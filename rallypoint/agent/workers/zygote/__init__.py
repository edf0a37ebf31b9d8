"""Workers by fork of a process that has imported torch (docs/guides/warm-starts.md).

Two sides, one module of messages between them (`messages.py`). The agent's: `launcher.py` starts what it is given, as a fork
where that is possible, `standby_pool.py` keeps the zygote and its standbys, `standby.py` is one of them. The zygote's:
`__main__.py` is its outermost frame, `serving.py` forks if forks are sound, `preload.py` imports, `waiting.py` is the life of a
standby before its command, `becoming.py` turns it into the worker.
"""
