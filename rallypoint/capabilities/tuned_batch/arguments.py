"""The tuned batch on the command line."""

from __future__ import annotations

__all__ = ["ARGUMENTS", "DIFFERENCES", "RUN_SWITCHES"]

#: DLRover's arguments: the one that it follows in DLRover's document, name, metavar ("" for a switch), text of --help.
ARGUMENTS = (("auto_config", "auto_tunning", "", "increase the batch size until the device memory is used"),)

#: Where DLRover's code does something else than its document says: the argument, the document, the code.
DIFFERENCES = {16: ("`auto_tunning`", "adapts to measured values", "uses the constants of a fixed model")}

#: Switches of `rallypoint-agent run`, each with the field of the plan that it sets.
RUN_SWITCHES = {"auto_tunning": "auto_tuning"}
