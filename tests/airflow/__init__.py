"""A real Airflow, driven through its REST API: killed and acted upon at chosen points of a job's life.

    python -m tests.airflow [--subset | --only WORDS | --random N --seed S] [--report FILE]

Every scenario is data (`matrix.py`); one driver (`driver.py`) runs them one after the other in one deployment: scheduler with
LocalExecutor, api-server, DAG processor, two triggerers, PostgreSQL.
"""
