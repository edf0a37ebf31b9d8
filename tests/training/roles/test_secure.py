"""TLS contexts of calls between roles."""

from __future__ import annotations

import pytest

from rallypoint.training.roles.errors import RolesError
from rallypoint.training.roles.secure import client_context, server_context
from rallypoint.wire.tls import CERTIFICATE
from tests.certificates import left


def test_files_are_read_again_only_if_they_have_changed(tmp_path):
    """Every connection of a stranger would cost the time of reading them."""
    folder = left(tmp_path / "tls", "rl")
    first = server_context(folder), client_context(folder)
    assert (server_context(folder), client_context(folder)) == first
    assert first[0] is not first[1]

    left(folder, "rl")
    renewed = server_context(folder), client_context(folder)
    assert not set(first) & set(renewed)
    assert (server_context(folder), client_context(folder)) == renewed

    (folder / CERTIFICATE).unlink()
    with pytest.raises(RolesError, match="cannot be loaded"):
        server_context(folder)
