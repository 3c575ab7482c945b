"""Experiments: one file, one question, one entry of `labs.registry.experiments`."""
