"""Search the regular expressions of a job's rules in what its script wrote, within a time limit.

Both come from others, and Python's `re` can take years for 60 characters. It holds the interpreter lock meanwhile: no event
loop, heartbeat or signal handler of the process runs. So only plain text is searched in this process. Any other pattern is
searched in a child process that has a time limit, and without a result in time it does not match.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import subprocess
import sys

from rallypoint.wire.plan import PATTERN_LENGTH

__all__ = ["SECONDS", "matches"]

log = logging.getLogger(__name__)

#: Seconds for one search, start of the child process included.
SECONDS = 2.0

#: Characters with a meaning of their own in a regular expression. Without them, a pattern is plain text.
_SPECIAL = re.compile(r"[.^$*+?{}\[\]\\|()]")

#: Bytes of memory of the child process, and its program; the exit code says whether the pattern matches.
_MEMORY = 512 << 20
_MATCHES, _DIFFERS = 10, 11
_PROGRAM = f"""
import json, re, resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY}, {_MEMORY}))
resource.setrlimit(resource.RLIMIT_CPU, (3, 3))
pattern, text = json.load(sys.stdin)
sys.exit({_MATCHES} if re.compile(pattern, re.MULTILINE).search(text) else {_DIFFERS})
"""


@functools.lru_cache(maxsize=1024)
def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern is found in a text; False if it is invalid or the search takes too long."""
    if len(pattern) > PATTERN_LENGTH:  # a script can write its own plan
        log.warning("log_pattern %r... has %d characters; the limit is %d", pattern[:80], len(pattern), PATTERN_LENGTH)
        return False
    if not _SPECIAL.search(pattern):
        return pattern in text
    return _searched(pattern, text)


def _searched(pattern: str, text: str) -> bool:
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    try:
        done = subprocess.run(
            command, input=json.dumps([pattern, text]), text=True, capture_output=True, timeout=SECONDS, env={}, check=False
        )
    except subprocess.TimeoutExpired:
        why = f"no result within {SECONDS:g} s"
    except OSError as error:
        why = str(error)
    else:
        if done.returncode in (_MATCHES, _DIFFERS):
            return done.returncode == _MATCHES
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    log.warning("cannot search log_pattern %r: %s; the rule does not match. Simplify the pattern", pattern[:200], why[:200])
    return False
