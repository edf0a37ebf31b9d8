"""Asks Airflow's own API server about connections, in a process of its own: Airflow reads its home when it is imported.

    python -m tests.live.airflow_connection_api CONNECTIONS TESTED...

CONNECTIONS are stored, each TESTED one is tested as the button in the UI does; all are JSON. The last line of the output is
JSON: what was answered, and the form of the connection type.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main(stored: str, *tested: str) -> None:
    from airflow.utils.db import initdb

    initdb()
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    with TestClient(create_app()) as client:
        headers = {"Authorization": f"Bearer {client.get('/auth/token').json()['access_token']}"}

        def ask(method: str, path: str, body: Any = None) -> Any:
            answer = client.request(method, path, json=body, headers=headers)
            assert answer.status_code < 300, answer.text
            return answer.json()

        for connection in json.loads(stored):
            ask("POST", "/api/v2/connections", connection)
        told = [ask("POST", "/api/v2/connections/test", json.loads(each)) for each in tested]
        (form,) = [each for each in ask("GET", "/ui/connections/hook_meta") if each["connection_type"] == "rallypoint"]
    print(json.dumps({"told": told, "form": form}))


if __name__ == "__main__":
    main(*sys.argv[1:])
