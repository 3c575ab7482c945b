"""Advantage estimators: one file, one entry of `labs.registry.estimators`."""
