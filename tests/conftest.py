"""Settings that every test shares."""

from hypothesis import settings

# The first call of a test imports torch, which breaks any deadline; the same examples on every run.
settings.register_profile("lab", deadline=None, derandomize=True)
settings.load_profile("lab")
