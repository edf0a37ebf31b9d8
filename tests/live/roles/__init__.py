"""Jobs of several roles as real processes of this machine."""
