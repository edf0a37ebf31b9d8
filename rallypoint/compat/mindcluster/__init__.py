"""The profile `mindcluster`: fault handling as in Ascend MindCluster (docs/guides/mindcluster.md)."""
