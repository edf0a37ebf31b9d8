"""The "Elastic training" tab of a task instance in Airflow's UI. Only an API server imports FastAPI."""
