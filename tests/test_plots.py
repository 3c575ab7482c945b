"""Figures: the same bytes for the same figure, nothing of a user's settings in them, bands that say what they are."""

import io

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from labs import plots


def simple():
    with plots.style():
        fig, axes = plots.figure(width="column")
        axes.plot([0, 1], [0, 1])
        plots.label(axes, "title", "time (s)", "rate (1)")
    return {"simple": fig}


def test_png_and_svg_have_the_same_bytes_again_and_carry_no_date():
    first, second = plots.files(simple(), True), plots.files(simple(), True)
    assert first == second
    assert sorted(first) == ["simple.png", "simple.svg"]
    assert b"Software" not in first["simple.png"]
    assert b"<dc:date>" not in first["simple.svg"]
    assert matplotlib.__version__.encode() not in first["simple.svg"]


def test_a_users_settings_change_nothing():
    plain = plots.files(simple())
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 20}):
        assert plots.files(simple()) == plain


def test_settings_are_put_back():
    before = dict(matplotlib.rcParams)
    plots.files(simple())
    assert dict(matplotlib.rcParams) == before


def test_no_pyplot_state():
    import subprocess
    import sys

    code = "import sys; from labs import plots; plots.png(plots.figure()[0]); print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_colours_differ_in_brightness_and_hue():
    """Neighbours of the cycle stay apart for a reader who confuses red with green: in blue or in brightness."""
    for one, two in zip(plots.CYCLE, plots.CYCLE[1:], strict=False):
        a, b = np.array(to_rgb(one)), np.array(to_rgb(two))
        yellow = abs(a[:2].mean() - b[:2].mean())  # what red and green merge into
        assert max(yellow, abs(a[2] - b[2])) > 0.1


def test_band_is_the_t_interval_and_says_so():
    from labs.stats import t_interval

    with plots.style():
        _, axes = plots.figure()
        text = plots.band(axes, [0, 1], [[1.0, 2.0], [3.0, 2.0], [2.0, 5.0]], plots.BLUE, "x")
    assert text == "band: 95 % t interval of the mean over 3 seeds"
    assert list(axes.lines[0].get_ydata()) == [2.0, 3.0]
    points = axes.collections[0].get_paths()[0].vertices[:, 1]
    expected = t_interval([1.0, 3.0, 2.0])
    assert points.min() == pytest.approx(min(expected.low, t_interval([2.0, 2.0, 5.0]).low))


def test_one_seed_has_no_band():
    with plots.style():
        _, axes = plots.figure()
        assert plots.band(axes, [0, 1], [[1.0, 2.0]], plots.BLUE, "x") == ""
    assert len(axes.collections) == 0


def test_rate_has_wilsons_band():
    with plots.style():
        _, axes = plots.figure()
        text = plots.rate(axes, [0, 1], [0.0, 0.3], 10, plots.BLUE, "x")
    assert text == "band: 95 % Wilson interval of 10 draws, one seed"
    assert axes.collections[0].get_paths()[0].vertices[:, 1].min() == 0.0


def test_exact_is_dashed():
    with plots.style():
        _, axes = plots.figure()
        plots.exact(axes, [0, 1], [0.5, 0.5], "exact")
    assert axes.lines[0].get_linestyle() == "--"


def test_heatmap_writes_numbers_that_can_be_read():
    with plots.style():
        fig, axes = plots.figure()
        plots.heatmap(axes, [[0.0, 1.0]], ["r"], ["a", "b"], slant=True)
    texts = [t for t in axes.texts if t.get_text() in ("0.00", "1.00")]
    assert [t.get_color() for t in texts] == [plots.BLACK, "white"]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["a", "b"]
    assert plots.png(fig).startswith(b"\x89PNG")


def test_size_on_paper():
    picture = imread(io.BytesIO(plots.files(simple())["simple.png"]))
    assert picture.shape[:2] == (630, 750)


def test_positions_do_not_hang_on_the_last_bits_of_the_solver():
    fig = simple()["simple"]
    with plots.style():
        plots.png(fig)
    assert not fig.get_constrained_layout()
    for value in fig.axes[0].get_position(original=True).bounds:
        assert value == pytest.approx(round(value, 6), abs=1e-15)


@pytest.mark.parametrize(("values", "scale"), [([0.0, 0.0], "linear"), ([0.0, 1e-9], "log"), ([], "linear")])
def test_an_axis_is_logarithmic_only_where_something_is_positive(values, scale, recwarn):
    with plots.style():
        fig, axes = plots.figure()
        axes.plot(values)
        plots.logarithmic(axes)
        plots.png(fig)
    assert axes.get_yscale() == scale
    assert not recwarn.list
