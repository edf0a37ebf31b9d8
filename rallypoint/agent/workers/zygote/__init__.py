"""Workers by fork of a process that has imported torch (docs/guides/warm-starts.md).

Two sides, one module of messages between them (`messages.py`). The agent's: `launcher.py` starts what it is given,
`standby_pool.py` keeps the zygote and its standbys, `standby.py` is one of them, `choosing.py` says what can be started so.
The zygote's: `__main__.py` is its outermost frame, `serving.py` forks, `preload.py` imports, `fitness.py` says whether forks
are sound, `waiting.py` and `warming.py` are the life of a standby before its command, `becoming.py` turns it into the worker.
"""
