"""A real Airflow over a DAG that has run, with one user who may only look, and that user's browser."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tests.live.light import without_torch
from tests.plugin import hostile_notes
from tests.plugin.browser import Tab
from tests.plugin.serving import serving

__all__ = ["DRAWN", "EDITOR", "FRAME", "PASSWORD", "USER", "AirflowPages", "airflow_with_a_run", "sign_in"]

#: The document of the tab inside of Airflow's frame.
FRAME = "document.querySelector('iframe[title=\"Elastic training\"]')?.contentDocument"

#: It has drawn what it was told.
DRAWN = f"{FRAME}?.querySelector('#page:not([aria-busy]) h1')"

USER, PASSWORD = "ada", "correct horse"

#: May edit connections.
EDITOR = "olga"


@dataclass(frozen=True)
class AirflowPages:
    """Where the pages of Airflow's own UI are: `root` is the API server's address, `run` the DAG's run."""

    root: str
    run: str

    def task(self, task: str, page: str = "plugin/rallypoint", *, index: int | None = None) -> str:
        """Return the address of a page of a task instance, by default that of the tab."""
        mapped = "" if index is None else f"/mapped/{index}"
        return f"{self.root}/dags/counting/runs/{quote(self.run, safe='')}/tasks/{task}{mapped}/{page}"


@contextlib.contextmanager
def airflow_with_a_run(folder: Path) -> Iterator[AirflowPages]:
    """Serve an Airflow whose DAG `counting` has run (tests/plugin/airflow_server.py)."""
    passwords = folder / "passwords.json"
    passwords.write_text(json.dumps(dict.fromkeys((USER, EDITOR), PASSWORD)))
    connections = hostile_notes.connections(folder)
    settings = {
        **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(conn) for name, conn in connections.items()},
        "AIRFLOW__RALLYPOINT__UI_CONNECTIONS": ", ".join(name for name in connections if name.startswith("allowed")),
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:viewer,{EDITOR}:op",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret that is long enough for every algorithm there is, and then some",
        "PYTHONPATH": without_torch(folder),
        "RALLYPOINT_HOME": str(folder / "home"),
        "TEST_FOLDER": str(folder),
    }
    with serving(folder, "tests.plugin.airflow_server", **settings) as root:
        yield AirflowPages(root, json.loads((folder / "run.json").read_text()))


async def sign_in(tab: Tab, address: str) -> None:
    """Go to a page as somebody whom Airflow does not know yet, and fill in the form that it answers with."""
    await tab.visit(address, until="document.querySelector('input[name=password]') !== null")
    for name, text in (("username", USER), ("password", PASSWORD)):
        await tab.run(f"document.querySelector('input[name={name}]').focus()")
        await tab.ask("Input.insertText", text=text)
    await tab.press("Enter")
    await tab.wait_for("!location.pathname.startsWith('/auth')", why="who signs in is led back")
