"""HTTP requests to a Kubernetes API server, for the backend and for coordinators in their pods."""
