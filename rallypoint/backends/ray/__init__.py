"""Jobs on a Ray cluster: Ray places nodes, and Rallypoint's agents and supervisors do all else."""
