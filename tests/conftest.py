"""Settings that every test shares."""

import os

# As on the command line (`labs.console.guard`): with tensors this small, more threads only cost time.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from hypothesis import Phase, settings  # noqa: E402

# The first call of a test imports torch, which breaks any deadline; the same examples on every run.
settings.register_profile("lab", deadline=None, derandomize=True)
# For mutation runs (`.ci/mutation.py`): a failing example is enough, the smallest one is not needed.
settings.register_profile("mutation", settings.get_profile("lab"), phases=(Phase.explicit, Phase.generate))
settings.load_profile("lab")
