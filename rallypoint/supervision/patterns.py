"""Search the regular expressions of a job's rules in what its script wrote, within a time limit.

Both come from others, and Python's `re` can take years for 60 characters. It holds the interpreter lock meanwhile: no event
loop, heartbeat or signal handler of the process runs. So only plain text is searched in this process. All other patterns of a
verdict are searched in one child process that has a time limit, and a pattern without a result in time does not match.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import subprocess
import sys

from rallypoint.wire.plan import PATTERN_LENGTH

__all__ = ["SECONDS", "search"]

log = logging.getLogger(__name__)

#: Seconds for all patterns of one verdict, start of the child process included.
SECONDS = 2.0

#: Characters with a meaning of their own in a regular expression. Without them, a pattern is plain text.
_SPECIAL = re.compile(r"[.^$*+?{}\[\]\\|()]")

#: Bytes of memory of the child process, and seconds of CPU time after which it continues with the next pattern. Patterns
#: that need more are searched again at the end, in the remaining time.
_MEMORY, _SHORT = 512 << 20, 0.008

#: Its program. It writes a line with the index of the pattern, and whether the pattern matches, or an error.
_PROGRAM = f"""
import json, re, resource, signal, sys
resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY}, {_MEMORY}))
resource.setrlimit(resource.RLIMIT_CPU, (3, 3))
class TooSlow(BaseException):
    pass
def stop(*_):
    raise TooSlow()
signal.signal(signal.SIGVTALRM, stop)
patterns, text = json.load(sys.stdin)
def result(pattern):
    try:
        return re.compile(pattern, re.MULTILINE).search(text) is not None
    except Exception as error:
        return str(error) or type(error).__name__
def search(number, limit):
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, limit)
        found = result(patterns[number])
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except TooSlow:
        return False
    print(json.dumps([number, found]), flush=True)
    return True
slow = [number for number in range(len(patterns)) if not search(number, {_SHORT})]
for number in slow:
    search(number, 0)
"""


@functools.lru_cache(maxsize=1024)
def search(patterns: tuple[str, ...], text: str) -> frozenset[str]:
    """Return the patterns that are found in a text; none that is invalid or takes too long."""
    found, expressions = set(), []
    for pattern in dict.fromkeys(patterns):
        length = len(pattern)
        if length > PATTERN_LENGTH:  # a script can write its own plan
            log.warning(
                "log_pattern %r... has %d characters; expected at most %d, so the rule counts as not matching",
                pattern[:80],
                length,
                PATTERN_LENGTH,
            )
        elif _SPECIAL.search(pattern):
            expressions.append(pattern)
        elif pattern in text:
            found.add(pattern)
    results = _results(expressions, text) if expressions else {}
    for number, pattern in enumerate(expressions):
        result = results.get(number, f"no result within {SECONDS:g} s for all patterns of the job")
        if result is True:
            found.add(pattern)
        elif result is not False:
            why = str(result)[:200]
            log.warning(
                "cannot search the log for log_pattern %r: %s; its rule counts as not matching. Simplify the pattern",
                pattern[:200],
                why,
            )
    return frozenset(found)


def _results(patterns: list[str], text: str) -> dict[int, bool | str]:
    """Return by the index of a pattern whether it matches, or an error; none of a pattern that needs more time."""
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    try:
        output = subprocess.run(
            command,
            input=json.dumps([patterns, text]).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            env={},
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
    except OSError as error:
        return dict.fromkeys(range(len(patterns)), str(error))
    return dict(json.loads(line) for line in output.splitlines(keepends=True) if line.endswith(b"\n"))
