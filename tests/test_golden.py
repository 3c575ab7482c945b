"""Every recorded row of every peer through the lab: values, gradients, dtypes, shapes and exceptions.

`GOLDEN_ROOT=/some/folder pytest tests/test_golden.py` runs another recording with the same layout.
"""

import numpy as np
import pytest
import torch

from labs.golden import by_function, difference, exception_type, rows, tensors
from tests.golden_adapters import adapters, excused

ADAPTERS = adapters()
EXCUSED = excused()


def check(row) -> str | None:
    """None when the lab does what the row records, else one sentence."""
    adapter = ADAPTERS.get(row.function)
    if adapter is None:
        return f"{row.case}: no adapter for {row.function}"
    with np.errstate(all="ignore"):
        try:
            got = adapter(row.config, tensors(row.inputs))
        except Exception as error:
            if row.raises is None:
                return f"{row.case}: the lab raised {type(error).__name__}: {error}"
            wanted = exception_type(row.raises)
            kind = type(error)
            same = isinstance(error, wanted) if wanted is not Exception else kind.__name__ == row.raises
            return None if same else f"{row.case}: the lab raised {kind.__name__} ({error}), recorded {row.raises}"
    if row.raises is not None:
        return f"{row.case}: the lab returned, recorded {row.raises}"
    lacking = [n for n in row.outputs if n not in got]
    if lacking:
        return f"{row.case}: no output {', '.join(lacking)}"
    return next((d for d in (difference(row, n, got[n]) for n in row.outputs) if d), None)


@pytest.mark.parametrize("function", sorted(by_function()))
def test_rows_of(function):
    torch.set_num_threads(1)
    wrong = [d for d in (check(r) for r in by_function()[function] if r.case not in EXCUSED) if d]
    assert not wrong, f"{len(wrong)} of {len(by_function()[function])} rows differ:\n" + "\n".join(wrong)


def test_summary(capsys, record_property):
    everything = rows()
    known = {r.case for r in everything}
    ran = [r for r in everything if r.case not in EXCUSED]
    matched = [r for r in ran if check(r) is None]
    with capsys.disabled():
        print(f"\ngolden: {len(everything)} rows, {len(ran)} ran, {len(matched)} matched, {len(EXCUSED)} excused")
        for case, reason in sorted(EXCUSED.items()):
            print(f"  excused {case}: {reason}")
    record_property("golden_matched", len(matched))
    assert set(EXCUSED) <= known or "GOLDEN_ROOT" in __import__("os").environ
    assert len(matched) == len(ran)
