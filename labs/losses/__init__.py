"""Policy losses: one file, one entry of `labs.registry.losses`."""
