"""Images, of which there are none: each is there, unless its name or somebody says otherwise."""

from __future__ import annotations

import fnmatch
import re

from tests.emulator.bodies import Body

__all__ = ["Images", "PullError"]

#: Names of images whose user is root; every other image is taken to have a user with a number that is not 0.
_ROOT = frozenset({"alpine", "busybox"})

_NAME = re.compile(r"[a-z0-9]([a-z0-9._/-]|:[0-9]+/)*(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?")


class PullError(Exception):
    """Why there is no image: the reason of the waiting container, and its message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


class Images:
    """Which images cannot be pulled: those called `missing`, and those whose name matches a pattern in `failing`."""

    def __init__(self) -> None:
        self.failing: set[str] = set()

    @staticmethod
    def runs_as_root(image: str) -> bool:
        """Return whether the user of an image is root."""
        return image.rpartition("/")[2].partition(":")[0] in _ROOT

    def pull(self, container: Body) -> None:
        """PullError where the image of this container cannot be had."""
        image = container["image"]
        if not _NAME.fullmatch(image):
            message = f'Failed to apply default image tag "{image}": couldn\'t parse image name: invalid reference format'
            raise PullError("InvalidImageName", message)
        name = image.rpartition("/")[2].partition(":")[0]
        if name != "missing" and not any(fnmatch.fnmatch(image, pattern) for pattern in self.failing):
            return
        if container.get("imagePullPolicy") == "Never":
            raise PullError("ErrImageNeverPull", f'Container image "{image}" is not present with pull policy of Never')
        raise PullError("ErrImagePull", f'failed to pull and unpack image "{image}": not found')
