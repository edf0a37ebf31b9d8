"""What operators and sensors share: names, job documents, the trigger, results. With them the only rooms that know Airflow."""
