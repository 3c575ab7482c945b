"""The page of a run: one file, well-formed, small, without network, with a glossary of exactly what it uses."""

import json
import re
import string
import subprocess
import sys

import pytest

import labs
from labs.config import as_dict
from labs.errors import InputError
from labs.experiment import Result
from labs.metrics import Metric
from labs.registry import experiments
from labs.report import pages, report
from labs.report.glossary import Glossary
from labs.report.metrics_zh import TRANSLATED
from labs.report.pages import Html, Section, esc, number, page, table, tag
from labs.report.texts import UI
from labs.report.words import WORDS
from tests.command_line import QUICK, environment, run
from tests.pages import by_id, check, parse, words

SMALL = {"updates": 6, "groups_per_update": 4, "group_size": 8, "evaluation_episodes": 20, "learning_rate": 20.0}
STAMP = {"command": ["labs.run", "--seed", "7"], "finished": "2026-01-01T00:00:00Z", "packages": {"numpy": "2"}}
HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)> \x00\u202e &amp; javascript:alert(3)"


@pytest.fixture(scope="module")
def result():
    return labs.run("agent", **SMALL)


@pytest.fixture(scope="module")
def agent(result):
    return report([result], stamp=STAMP)


def test_page_of_a_run(agent, result):
    root = check(agent)
    main = words(root)
    assert result.conclusion in main
    assert all(" ".join(line.split()) in main for line in result.summary)
    typed = "python -m labs.run --experiment agent --seed 7 --set updates=6 groups_per_update=4 group_size=8 "
    assert typed + "learning_rate=20 evaluation_episodes=20" in words(by_id(root, "what-ran"))
    assert all(command in words(by_id(root, "next")) for command in result.next)
    assert len(list(by_id(root, "figures").iter("img"))) == 2
    assert "learning" in by_id(root, "figures").find("figure/img").get("alt")
    assert "2026-01-01" in words(by_id(root, "stamp"))


def test_the_glossary_has_every_metric_of_the_page_and_no_other(agent, result):
    root = check(agent)
    shown = {*result.headline, *(name for row in result.metrics for name in row)}
    terms = [words(each.find("dt")) for each in by_id(root, "glossary").find("dl")]
    declared = {metric.name: metric for metric in experiments["agent"].METRICS}
    assert {term for term in terms if term in declared} == shown
    assert len(terms) == len(set(terms))
    assert {"score", "reward", "return", "value", "advantage"} <= set(terms)
    entry = words(next(each for each in by_id(root, "glossary").find("dl") if words(each[0]) == "mean_state_entropy"))
    metric = declared["mean_state_entropy"]
    assert metric.formula in entry
    assert metric.text in entry
    assert "unit nat" in entry
    assert "range ≥ 0" in entry
    # A number is a link wherever a table shows it.
    for row in by_id(root, "numbers").iter("tr"):
        assert row[0].get("scope") == "col" or row[0].find("a") is not None


def test_numbers_of_the_tables(agent, result):
    root = check(agent)
    rows = {words(row[0]): [words(cell) for cell in row[1:]] for row in by_id(root, "numbers").iter("tr")}
    rates = [row["train_success_rate"] for row in result.metrics]
    seen = rows["train_success_rate"]
    assert seen[0] == "1"
    found = [number(value) for value in (rates[0], rates[3], rates[-1], min(rates), max(rates))]
    assert seen[1:] == found


def test_readable_without_script(agent):
    root = check(agent)
    replay = by_id(root, "replay")
    assert "hidden" not in [key for each in root.iter() for key in each.attrib]
    sources = replay.findall(".//details[@class='source']")
    assert [words(source[0])[:8] for source in sources][-1] == "Held-out"
    steps = replay.findall(".//div[@class='step']")
    assert len(steps) > 20
    assert "attention_mask" in words(steps[0])
    assert len(sources[0].findall("details")) == 8, "one group of the update"


@pytest.fixture
def bare(monkeypatch):
    """Without figures, which take most of the time."""
    monkeypatch.setattr("labs.report.runs.figures", lambda name, results: {})


def test_only_the_stamp_differs(result, bare):
    now = report([result], stamp=STAMP)
    assert report([result], stamp=STAMP) == now
    later = report([result], stamp={**STAMP, "finished": "2027-01-01T00:00:00Z"})
    assert later != now
    assert later.split(b"<footer>")[0] == now.split(b"<footer>")[0]
    assert now.count(b"2026-01-01") == 1


@pytest.mark.slow
def test_same_bytes_in_every_process(tmp_path):
    made = set()
    for i, seed in enumerate(("0", "1")):
        done = subprocess.run(
            [sys.executable, "-m", "labs.run", *QUICK, "--results", str(tmp_path / "r"), "--report", str(i)],
            cwd=tmp_path, env=environment(PYTHONHASHSEED=seed), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        page = (tmp_path / str(i)).read_bytes()
        check(page)
        made.add(page)
    assert len(made) == 1


def test_chinese_page(result, bare):
    root = check(report([result], "zh", stamp=STAMP))
    assert root.get("lang") == "zh-CN"
    titles = [words(title) for title in root.iter("h2")]
    assert titles[1:4] == ["问题", "结论", "运行了什么"]
    entries = {words(each[0]): words(each[1]) for each in by_id(root, "glossary").find("dl")}
    assert "验证器" in entries["分数"]
    assert "策略有多犹豫" in entries["mean_state_entropy"]
    # What the experiment says itself is English and says so.
    (lead,) = [p for p in by_id(root, "conclusion").iter("p") if p.get("class") == "lead"]
    assert lead.find("span").get("lang") == "en"
    own = "".join(text for text in titles)
    assert not re.search(r"[a-z]{4}", own), own


def test_hostile_text_stays_text(result, bare):
    wicked = Result(
        data={}, metrics=result.metrics, headline=result.headline, summary=[HOSTILE], conclusion=HOSTILE,
        next=(HOSTILE,), experiment="agent", seed=7, fingerprint="f", config=result.config, folder=HOSTILE,
        trajectories=[{"episode": 0, "operation": HOSTILE, "operands": [1], "end": HOSTILE, "success": False,
                       "reward": 0,
                       "steps": [{"observation": {"operation": "x", "stage": HOSTILE}, "action": HOSTILE,
                                  "log_probability": -1.0, "policy_version": 3}]}],
    )  # fmt: skip
    made = report([wicked], stamp={HOSTILE: HOSTILE}, replayed=False)
    root = check(made)
    assert not list(root.iter("img"))
    assert made.decode().count("<script") == made.decode().count("</script>") == 1
    assert "alert(1)" in words(by_id(root, "conclusion"))
    assert "\x00" not in made.decode()
    assert "\u202e" not in made.decode()


def test_many_seeds(bare):
    sweep = labs.run("agent", seeds=range(3), **SMALL)
    root = check(report(sweep.results, stamp=STAMP))
    assert "--seeds 0-2" in words(by_id(root, "what-ran"))
    rows = {words(row[0]): [words(cell) for cell in row[1:]] for row in by_id(root, "numbers").iter("tr")}
    mean = sweep.headline["exact_success_rate"]
    assert rows["exact_success_rate"][:2] == [number(mean.value), f"{number(mean.low)} – {number(mean.high)}"]
    assert [words(each[0]) for each in by_id(root, "numbers").findall(".//details//tbody/tr")] == ["0", "1", "2"]
    assert "replay" not in [each.get("id") for each in root.iter()]


def test_a_page_too_large_leaves_things_out_and_then_gives_up(result, bare, monkeypatch):
    full = len(report([result]))
    monkeypatch.setattr(pages, "MOST_BYTES", full - 1)
    smaller = report([result])
    assert len(smaller) < full
    check(smaller)
    monkeypatch.setattr(pages, "MOST_BYTES", 1000)
    with pytest.raises(InputError, match="even without figures"):
        report([result])


@pytest.mark.parametrize("results", [[], "two"])
def test_results_that_no_report_can_be_about(results, result):
    other = Result(data={}, experiment="agent", fingerprint="other", config=result.config)
    with pytest.raises(InputError, match="one configuration"):
        report([result, other] if results == "two" else results)


def test_an_unknown_language(result):
    with pytest.raises(InputError, match="language"):
        report([result], "de")


def test_commands(tmp_path, monkeypatch, bare):
    monkeypatch.chdir(tmp_path)
    said = run(*QUICK, "--no-figures", "--report", "page.html")
    assert said.code == 0, said.err
    first = (tmp_path / "page.html").read_bytes()
    (folder,) = (tmp_path / "results" / "agent").iterdir()
    assert json.loads((folder / "stamp.json").read_text())["finished"] in words(by_id(check(first), "stamp"))
    again = run("report", str(folder.relative_to(tmp_path)), whole=True)
    assert again.code == 0, again.err
    assert (folder / "report.html").read_bytes() == first, "a stored run gives the same page"
    other = run("report", str(folder), "--lang", "zh", "--no-replay", whole=True)
    assert other.out.strip().endswith("report.zh.html")
    for wrong, sentence in (
        (("report", "nowhere"), "no folder of a complete run"),
        (("report", str(folder), "--output", "no/such/folder.html"), "there is no folder"),
        (("run", *QUICK, "--report", "no/such/folder.html"), "there is no folder"),
    ):
        said = run(*wrong, whole=True)
        assert said.code == 2
        assert sentence in said.err


def test_parts_of_a_page():
    assert esc("<a>") == "&lt;a&gt;"
    assert esc(Html("<a/>")) == "<a/>"
    assert tag("p", "x", class_="y", hidden=None, open=True, data_i=3) == '<p class="y" open="open" data-i="3">x</p>'
    assert number(0.00001234567) == "1.235e-05".replace("-", "−")
    assert number(1234567.0) == "1,234,567"
    assert number(-0.5) == "−0.5"
    assert number(float("nan")) == "nan"
    assert number(None) == "–"
    assert table("c", ["a"], [], empty="nothing") == "<p>nothing</p>"
    made = page("T", [Section(id="a", title="A", body=tag("p", "text"))])
    assert words(by_id(check(made), "a")) == "Atext"


def test_words_are_linked_once_in_a_text_and_code_is_code():
    declared = {"a_b": Metric(name="a_b", unit="1", formula="x")}
    glossary = Glossary("en", declared)
    text = glossary.text("An advantage is no advantage; a_b, a_bc and `a_b` < 1")
    assert text.count("<a ") == 3
    assert text.count("advantage</a>") == 1
    assert text.endswith("</a> &lt; 1")
    assert glossary.text("advantageous") == "advantageous"


def test_texts_are_whole_in_both_languages():
    def fields(text):
        return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name)

    for key, (english, chinese) in UI.items():
        assert english, key
        assert chinese, key
        assert fields(english) == fields(chinese), key
    for key, word in WORDS.items():
        assert all(word.term), key
        assert all(word.text), key
        assert all(other in WORDS for other in word.see), key
        for pattern in word.pattern:
            re.compile(pattern)


def test_translations_are_of_texts_that_exist():
    known = set()
    for name in ("agent", "rollout", "train"):
        for metric in experiments[name].METRICS:
            known |= {metric.formula, metric.text, metric.healthy}
    assert set(TRANSLATED) <= known, set(TRANSLATED) - known


def test_settings_of_the_page(agent, result):
    rows = {words(row[0]): words(row[1]) for row in by_id(parse(agent), "what-ran").iter("tr")}
    assert rows["updates"] == "6default 100"
    assert rows["max_steps"] == "none"
    assert set(as_dict(experiments["agent"].Config())) <= set(rows)


def test_rows_of_several_schedules_stand_apart(bare):
    run = labs.run("rollout", tasks=24)
    root = check(report([run]))
    captions = [words(each) for each in by_id(root, "numbers").iter("caption")]
    counts = {name: sum(row["schedule"] == name for row in run.metrics) for name in ("synchronous", "asynchronous")}
    assert captions[1:] == [f"{name} ({count} rows)" for name, count in counts.items()]
    assert len(list(by_id(root, "pipeline").iter("svg"))) > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", list(experiments))
def test_every_experiment_has_a_page(name):
    run = labs.run(name, **getattr(experiments[name], "TINY", {}))
    made = report([run], "zh")
    root = check(made)
    declared = {metric.name for metric in experiments[name].METRICS}
    terms = {words(each[0]) for each in by_id(root, "glossary").find("dl")}
    numbers = {key for row in run.metrics for key, value in row.items() if isinstance(value, int | float)}
    assert set(run.headline) | (numbers & declared) <= terms
    assert len(list(by_id(root, "figures").iter("img"))) == len(run.figures())
