"""Finite environments: one file, one entry of `labs.registry.environments`."""
