"""Code shared by operators and sensors: names, job documents, the trigger, results."""
