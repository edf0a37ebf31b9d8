"""The connection's form in Airflow's UI."""

from __future__ import annotations

from airflow.providers_manager import ProvidersManager
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

from rallypoint.provider.connections import connection
from rallypoint.provider.connections.hook import RallypointHook
from rallypoint.provider.info import CONNECTION_TYPE


def test_airflow_finds_the_type_with_its_form_and_its_test():
    """As the provider manager tells the UI: the fields, and that the connection can be tested."""
    manager = ProvidersManager()
    widgets = manager.connection_form_widgets
    prefix = "extra__rallypoint__"
    mine = {name.removeprefix(prefix) for name in widgets if name.startswith(prefix)}
    hook = ProvidersManagerTaskRuntime().hooks["rallypoint"]

    assert mine == set(CONNECTION_TYPE["conn-fields"])
    assert hook is not None
    assert (hook.hook_name, hook.connection_id_attribute_name, hook.connection_testable) == ("Rallypoint", "conn_id", True)
    assert manager.field_behaviours["rallypoint"]["relabeling"] == {"password": "Token"}


def test_the_form_has_the_fields_that_are_read():
    """No more and no fewer, the platforms among them."""
    fields = CONNECTION_TYPE["conn-fields"]

    assert set(fields) == set(connection.KNOWN)
    assert fields["platform"]["schema"]["enum"] == ["local", "kubernetes", "ray"]
    assert fields["platform"]["schema"]["default"] == connection.Settings(conn_id="x").platform


def test_the_hook_is_what_the_description_says():
    """One type, one name."""
    assert (RallypointHook.conn_type, RallypointHook.hook_name) == (
        CONNECTION_TYPE["connection-type"],
        CONNECTION_TYPE["hook-name"],
    )
