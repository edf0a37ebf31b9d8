"""`AppWrapperOperator`: run an AppWrapper or PyTorchJob on a cluster with their controllers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rallypoint.backends.site import KUBERNETES
from rallypoint.operators.arguments import folder_of, key_of, notes_of
from rallypoint.operators.owner import JobOwner
from rallypoint.provider.errors import OptionError, one_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rallypoint.provider.manifest import Manifest

__all__ = ["AppWrapperOperator"]

#: Kinds that a manifest may have.
_KINDS = ("appwrapper", "pytorchjob")


class AppWrapperOperator(JobOwner):
    """Run an AppWrapper to its end. The AppWrapper controller retries the job; the task watches and reports failures.

    Also takes the arguments of `JobOwner`. Exactly one of `settings` and `manifest` is required.

    :param settings: settings of the pytorchjob-generator: a mapping, the path of a YAML or JSON file (relative to the DAG's
        folder), or YAML text. Templates inside the file are rendered. The image, queue and service account default to those of
        the connection. (templated)
    :param manifest: an AppWrapper or PyTorchJob manifest: a mapping, a path or YAML text, as in `settings`. (templated)
    :param name: name of the job. Default: with settings, a name that starts with `jobName` and is unique to the task instance
        (all tries share it); with a manifest, its own name. (templated)
    :param kind: `appwrapper` wraps a PyTorchJob in an AppWrapper; `pytorchjob` removes the wrapper, and Rallypoint retries.
        Default: run the manifest as it is.
    """

    template_fields: Sequence[str] = ("settings", "manifest", "name", *JobOwner.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {"settings": "yaml", "manifest": "yaml"}
    ui_color = "#f3e8f9"

    def __init__(
        self,
        *,
        settings: Mapping[str, Any] | str | None = None,
        manifest: Mapping[str, Any] | str | None = None,
        name: str | None = None,
        kind: str | None = None,
        backend: str | None = KUBERNETES,
        **kwargs: Any,
    ) -> None:
        one_of("backend", backend, (KUBERNETES,))
        super().__init__(backend=backend, **kwargs)
        if (settings is None) is (manifest is None):
            raise OptionError("settings", settings, "a value for exactly one of the arguments settings and manifest")
        if kind is not None:
            one_of("kind", kind, _KINDS)
        self.settings = settings
        self.manifest = manifest
        self._written = manifest if settings is None else settings
        self.name = name
        self.kind = kind

    def build_work(self, context: Context) -> Manifest:
        """Return the manifest that the arguments describe; raises `JobError`."""
        from rallypoint.provider import document as documents  # noqa: PLC0415  brings pydantic, which a DAG file need not pay
        from rallypoint.provider.connections.defaults import settings_with  # noqa: PLC0415
        from rallypoint.provider.manifest import Manifest, annotated, from_settings, named  # noqa: PLC0415
        from rallypoint.wire.plan import Kind  # noqa: PLC0415

        field = "manifest" if self.settings is None else "settings"
        document, _ = documents.read_source(
            getattr(self, field),
            written=self._written,
            folder=folder_of(self),
            render=lambda text: self.render_template(text, context),
            field=field,
        )
        ti, name = context["ti"], self.name or ""
        if self.settings is None:
            made = named(document, name=name)
        else:
            made = from_settings(settings_with(document, self.locate().defaults), key_of(ti), name=name)
        made = annotated(made, notes_of(ti))
        return Manifest(name=made["metadata"]["name"], manifest=made, kind=None if self.kind is None else Kind(self.kind))
