"""What a job is on a cluster, as manifests: a function of the job alone. Pure; no cluster is asked."""
