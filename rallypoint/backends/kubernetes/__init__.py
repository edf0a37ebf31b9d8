"""The Kubernetes backend: a job is a ConfigMap that owns plain pods; pure files say what they look like, others talk to the API."""
