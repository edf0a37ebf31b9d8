"""Report of a job: one model that the terminal, the tab, XCom, OpenLineage and log lines render."""
