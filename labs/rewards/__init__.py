"""Reward rules: one file, one entry of `labs.registry.rewards`."""
