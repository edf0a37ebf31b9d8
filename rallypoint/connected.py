"""Submit a job to the backend that an Airflow connection names: the process that `Job.submit(conn_id=...)` starts.

    python -m rallypoint.connected CONN_ID FILE [options of rallypoint submit]

It is `rallypoint submit` with the site, the credentials and the defaults of the connection. The credentials stay in this
process and in the standard input of the supervisor that it starts.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rallypoint.backends.site import KINDS, KUBERNETES, Site
from rallypoint.cli.main import main as command
from rallypoint.cli.services import Services
from rallypoint.job import load_job
from rallypoint.job.builder.settings import Given
from rallypoint.job.document import read_yaml, write_yaml
from rallypoint.provider.backend_access import resolve
from rallypoint.provider.connections.connection import Defaults
from rallypoint.provider.connections.defaults import with_arguments, with_defaults, with_policies
from rallypoint.provider.connections.locating import Located
from rallypoint.provider.document import spelled
from rallypoint.provider.place import Place
from rallypoint.wire.errors import RallypointError

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend

__all__ = ["completed", "main"]

#: Options that say where a job runs; the connection gives those that are missing.
_WHERE = ("backend", *dict.fromkeys(field for fields in KINDS.values() for field in fields))


def main(argv: list[str]) -> int:
    """Return the exit code of `rallypoint submit`, or 1 for a connection that cannot be used."""
    conn_id, file, *options = argv
    words, others = _split(options)
    try:
        located = resolve(Place.of({**words, "conn_id": conn_id}))
        document = completed(read_yaml(Path(file).read_text(encoding="utf-8")), located.defaults, located.site)
    except RallypointError as error:
        sys.stderr.write(f"rallypoint: {error}\n")
        return 1
    Path(file).write_text(write_yaml(document), encoding="utf-8")
    image = located.defaults.supervisor_image
    if image and located.site.kind == KUBERNETES and not any(word.startswith("--supervisor-image=") for word in others):
        others.append(f"--supervisor-image={image}")
    if runtime_env := words.get("runtime_env"):
        others.append(f"--runtime-env={runtime_env}")
    return command(["submit", file, *located.site.options(), *others], services=_services(located))


def completed(document: dict[str, Any], defaults: Defaults, site: Site) -> dict[str, Any]:
    """Return a job document with the defaults of a connection, and after them those of `submit()`; raises `JobError`."""
    found = with_policies(with_arguments(spelled(document), defaults.arguments), defaults.policies)
    found = Given(values={}).with_defaults().applied(found)
    local = site.on_this_machine
    return with_defaults(load_job(found, base=Path.cwd() if local else None, based=local), defaults).to_document()


def _split(options: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options that say where the job runs, by name, and the others."""
    words: dict[str, str] = {}
    others = []
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        if name.replace("-", "_") in _WHERE:
            words[name.replace("-", "_")] = value
        else:
            others.append(option)
    return words, others


def _services(located: Located) -> Services:
    """Return services with the credentials of the connection; its runtime_env is in no option, as commands are printed."""
    services = Services().with_credentials(located.credentials)
    runtime_env = located.site.runtime_env

    def opened(site: Site) -> Backend:
        return services.open_backend(dataclasses.replace(site, runtime_env=site.runtime_env or runtime_env))

    return dataclasses.replace(services, open_backend=opened) if runtime_env else services


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
