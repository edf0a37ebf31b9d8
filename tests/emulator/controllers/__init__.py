"""The controllers that a cluster may have beside Kubernetes: AppWrapper's, the training operator's, Kueue's."""
