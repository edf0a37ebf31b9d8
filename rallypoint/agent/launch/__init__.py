"""Former place of `rallypoint.compat.launch_agent`."""
