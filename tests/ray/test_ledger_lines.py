"""Lines by which a ledger announces itself in the log of a Ray job: any job can print one, and logs can be large."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from rallypoint.backends.ray.dashboard import announced, read_line
from rallypoint.backends.ray.line import LINE

KEY = "k" * 43


def line(url: str, key: str = KEY) -> str:
    return f"{LINE}{json.dumps({'url': url, 'key': key})}\n"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "RALLYPOINT_LEDGER {",
            "RALLYPOINT_LEDGER [1]",
            'RALLYPOINT_LEDGER {"url": 1, "key": 2}',
            "RALLYPOINT_LEDGER " + "[" * 5000,
        ),
        *(
            line("http://127.0.0.1:80/internal?x="),
            line("http://u:p@127.0.0.1:80"),
            line("http://127.0.0.1:80#a"),
            line("http://["),
        ),
        *(line("https://127.0.0.1:80"), line("http://127.0.0.1"), line("http://127.0.0.1:99999"), line("file:///etc/passwd")),
        *(line("http://169.254.169.254:80"), line("http://metadata.internal:80"), line("http://0.0.0.0:80")),
        *(line("http://10.0.0.1:80", "k\r\nX-Evil: 1" + KEY), line("http://10.0.0.1:80", "short")),
    ],
)
def test_a_line_that_no_ledger_wrote_names_no_ledger(text: str) -> None:
    """Any Ray job can print one; the API server of Airflow would send a request to where it says."""
    assert read_line(text.strip(), dashboard="http://127.0.0.1:8265") is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", "\nmore\n", id="first"),
        pytest.param("text\r\n\n", "", id="last"),
        pytest.param("\n" * (4 << 20), "\n" * (4 << 20), id="among millions of lines"),
        pytest.param(f"x {LINE}{{}}\n", "\n" + line("http://10.0.0.1:99"), id="among others"),
    ],
)
def test_a_ledger_is_found_in_a_log_of_any_size(before: str, after: str) -> None:
    """A list of all lines of 32 MiB would need a second of the event loop, and hundreds of megabytes."""
    told = line("http://10.0.0.7:41000").strip()
    log = before + told + after
    tracemalloc.start()
    try:
        assert announced(log) == told
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("log", ["", "text", f"x{LINE}", f"text\n {LINE}{{}}"])
def test_another_log_announces_no_ledger(log: str) -> None:
    """The line has to begin with the mark."""
    assert announced(log) == ""


@pytest.mark.parametrize(
    ("url", "dashboard", "used"),
    [
        ("http://10.0.0.7:41000", "http://ray-head:8265", True),
        ("http://[fd00::7]:41000", "https://ray-head:8265", True),
        ("http://ray-head:41000", "http://ray-head:8265", True),
        ("http://127.0.0.1:41000", "http://localhost:8265", True),
        ("http://127.0.0.1:41000", "http://ray-head:8265", False),
        ("http://[::1]:41000", "http://10.0.0.1:8265", False),
    ],
)
def test_a_ledger_is_at_an_address_of_the_cluster(url: str, dashboard: str, *, used: bool) -> None:
    """Never on the machine of the client, unless the dashboard is there."""
    assert read_line(line(url).strip(), dashboard=dashboard) == ((url, KEY) if used else None)
