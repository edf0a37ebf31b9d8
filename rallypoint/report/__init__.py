"""The story of a job, told once: one model that the terminal, the tab, XCom, OpenLineage and log lines render."""
