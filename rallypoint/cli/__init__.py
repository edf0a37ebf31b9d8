"""The `rallypoint` command: jobs for people without Airflow, or beside it."""
