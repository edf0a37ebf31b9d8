"""What should be so: a pure state machine from (record, observation, policy, now) to (record, actions). No clock, no I/O."""
