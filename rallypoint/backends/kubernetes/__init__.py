"""The Kubernetes backend: a job is a ConfigMap that owns plain pods. Pure files say what they look like; others ask the API."""
