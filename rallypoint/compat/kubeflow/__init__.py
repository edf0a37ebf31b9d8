"""Progress that HuggingFace's `Trainer` reports over Kubeflow Trainer's status protocol (docs/guides/integrations.md)."""
