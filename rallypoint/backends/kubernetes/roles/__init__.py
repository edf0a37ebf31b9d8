"""Jobs with several roles on Kubernetes: the layout of their pods, manifests, and the units of simple roles."""
