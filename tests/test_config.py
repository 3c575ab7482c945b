"""Settings: what may come in, what is refused and how, and what names a configuration."""

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.config import as_dict, changed, field, fingerprint, spelled
from labs.errors import InputError
from labs.settings import allowed, build, parse_pairs, read_file
from labs.settings import settings as _settings


@dataclass(frozen=True, kw_only=True)
class Config:
    count: int = field(3, help="how many", low=1, high=10)
    rate: float = field(0.5, help="how fast", above=0, below=1, unit="1/s")
    limit: int | None = field(None, help="at most", low=0)
    on: bool = field(False, help="whether")
    name: str = field("a", help="which", choices=("a", "alpha"))
    sizes: tuple[int, ...] = field((1, 2), help="sizes", low=0)
    marks: tuple[str, ...] | None = field(None, help="marks")

    def check(self):
        if self.limit is not None and self.limit < self.count:
            raise InputError("limit is below count")


def test_defaults_pass_and_are_kept():
    assert build(Config, {}) == Config()
    assert changed(Config()) == {}


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("count=7", 7),
        ("rate=1e-3", 0.001),
        ("limit=none", None),
        ("limit=NULL", None),
        ("limit=9", 9),
        ("on=True", True),
        ("on=false", False),
        ("name=alpha", "alpha"),
        ("sizes=[4, 5]", (4, 5)),
        ("sizes=4,5", (4, 5)),
        ("sizes=4", (4,)),
        ("sizes=", ()),
        ('marks=["x", "y"]', ("x", "y")),
        ("marks=none", None),
    ],
)
def test_pairs_read_by_the_type_of_the_setting(pair, value):
    config = build(Config, parse_pairs(Config, [pair]))
    assert getattr(config, pair.partition("=")[0]) == value


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cuont": 1}, ["cuont", "did you mean count?", "rate"]),
        ({"seed": 1}, ["--seed"]),
        ({"count": 0}, ["count is 0", "at least 1", "at most 10"]),
        ({"count": 11}, ["count is 11"]),
        ({"count": 2.0}, ["count is 2.0", "an integer"]),
        ({"count": True}, ["count is true", "an integer"]),
        ({"count": "3"}, ['count is "3"', "an integer"]),
        ({"count": None}, ["count is null"]),
        ({"rate": 0}, ["rate is 0", "above 0", "below 1"]),
        ({"rate": 1.0}, ["rate is 1.0"]),
        ({"rate": float("nan")}, ["rate is NaN", "a number"]),
        ({"rate": float("inf")}, ["rate is Infinity"]),
        ({"limit": -1}, ["limit is -1", "or none"]),
        ({"limit": 2}, ["limit is below count"]),
        ({"on": 1}, ["on is 1", "true or false"]),
        ({"name": "alpah"}, ["alpah", "did you mean alpha?"]),
        ({"name": 3}, ["name is 3"]),
        ({"sizes": 3}, ["sizes is 3", "a list"]),
        ({"sizes": [1, -1]}, ["sizes is -1", "at least 0"]),
        ({"sizes": [1, "x"]}, ['sizes is "x"']),
    ],
)
def test_bad_values_name_setting_value_and_what_is_allowed(values, words):
    with pytest.raises(InputError) as error:
        build(Config, values, "here: ")
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("pairs", "word"), [(["count"], "key=value"), (["count=1", "count=2"], "twice"), (["x=1"], "count, rate")]
)
def test_bad_pairs(pairs, word):
    with pytest.raises(InputError, match=word):
        parse_pairs(Config, pairs)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"{", "no JSON"),
        (b"[1]", "holds list"),
        (b'{"count": 1, "count": 2}', "twice"),
        (b"\xff\xfe{}", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (None, "No such file"),
    ],
)
def test_bad_files(tmp_path, content, word):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=word):
        read_file(str(path))


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf{"count": 4}')
    assert read_file(str(path)) == {"count": 4}


def test_an_annotation_that_no_text_can_fill_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Odd:
        table: complex = field(None, help="a table")

    with pytest.raises(InputError, match="complex"):
        build(Odd, {"table": {}})


def test_what_is_allowed_in_words():
    said = {name: allowed(each) for name, each in _settings(Config).items()}
    assert said["count"] == "an integer at least 1 and at most 10"
    assert said["rate"] == "a number above 0 and below 1"
    assert said["limit"] == "an integer at least 0 or none"
    assert said["name"] == "one of a, alpha"
    assert said["sizes"] == "a list, each an integer at least 0"


def test_what_is_spelled_reads_back():
    assert spelled(Config()) == ""
    config = build(Config, {"count": 4, "rate": 0.25, "sizes": [1, 3], "on": True, "marks": ["x", "y"]})
    assert spelled(config) == " --set count=4 rate=0.25 on=true sizes=1,3 marks=x,y"
    assert build(Config, parse_pairs(Config, spelled(config).removeprefix(" --set ").split())) == config


def test_fingerprint_names_the_settings_and_not_how_they_were_given():
    by_file = build(Config, {"rate": 0.25, "sizes": [4]})
    by_pair = build(Config, parse_pairs(Config, ["sizes=4", "rate=0.25"]))
    assert fingerprint("x", by_file) == fingerprint("x", by_pair)
    assert fingerprint("x", by_file) != fingerprint("y", by_file)
    assert fingerprint("x", by_file) != fingerprint("x", Config())
    assert len(fingerprint("x", Config())) == 12


def test_an_integer_given_for_a_number_is_that_number():
    @dataclass(frozen=True, kw_only=True)
    class Wide:
        rate: float = field(1.0, help="rate")

    assert fingerprint("x", build(Wide, {"rate": 1})) == fingerprint("x", Wide())


@given(st.integers(1, 10), st.floats(0.01, 0.99), st.booleans(), st.lists(st.integers(0, 99), max_size=4))
def test_what_is_written_reads_back(count, rate, on, sizes):
    config = build(Config, {"count": count, "rate": rate, "on": on, "sizes": sizes})
    assert build(Config, json.loads(json.dumps(as_dict(config)))) == config
    pairs = [f"count={count}", f"rate={rate!r}", f"on={on}", f"sizes={sizes}"]
    assert build(Config, parse_pairs(Config, pairs)) == config
