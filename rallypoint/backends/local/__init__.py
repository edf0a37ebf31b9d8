"""Jobs as processes of this machine, one folder per job, each node behind a shim that outlives its supervisor."""
