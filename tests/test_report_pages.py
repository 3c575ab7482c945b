"""The pages of a diagnosis, of a comparison and of a large pipeline."""

import pytest

from labs.compare import Run, compare
from labs.diagnosis import Diagnosis, Examination, Unchecked
from labs.evidence import Finding, Where
from labs.experiment import Result
from labs.registry import checks
from labs.replay import schedules
from labs.report import comparison_report, diagnosis_report
from labs.report.gantt import pipeline_panel
from labs.report.glossary import Glossary
from labs.report.pages import Section, page
from tests.pages import by_id, check, words

FINDING = Finding(
    check="score_sums",
    what="the scores of <b>row</b> 3 sum to 2",
    where=Where(file="a<b>.jsonl", line=4, step=1, row=3),
    share="1 of 8 rows (12 %)",
    why="the advantage is too large",
    advice="add the parts once",
    sure="certain",
    numbers={"sum": 2.0},
)
UNCHECKED = Unchecked(check="kl_sign", code="C2", question="Did KL change sign?", unlock="log actor/ppo_kl")


def test_bare_findings():
    made = diagnosis_report([FINDING], [UNCHECKED], typed="python -m labs diagnose 'a<b>.jsonl'")
    root = check(made)
    found = words(by_id(root, "findings"))
    for text in (
        FINDING.what,
        "a<b>.jsonl line 4, step 1, row 3",
        FINDING.share,
        FINDING.why,
        FINDING.advice,
        "certain",
    ):
        assert text in found
    assert "log actor/ppo_kl" in words(by_id(root, "unchecked"))
    assert "python -m labs diagnose 'a<b>.jsonl'" in words(by_id(root, "verdict"))
    assert "advantage" in [words(each[0]) for each in by_id(root, "glossary").find("dl")]
    assert diagnosis_report([FINDING], [UNCHECKED], typed="python -m labs diagnose 'a<b>.jsonl'") == made


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_whole_diagnosis(lang):
    examination = Examination()
    for step in next(iter(checks["score_sums"].BAD.values()))():
        examination.look(step)
    done = examination.end()
    done.notes = ["rows are taken for `training`"]
    again = [("score_sums", "python -m labs.run --experiment agent", ["it shows"])]
    root = check(diagnosis_report(done, reproduced=again, lang=lang))
    for kind in done.faults:
        assert " ".join(kind.findings[0].what.split()) in words(by_id(root, "findings"))
    assert done.unchecked
    table = by_id(root, "unchecked").find(".//tbody")
    assert len(table) == len(done.unchecked)
    ran = {words(row[0]) for row in by_id(root, "ran").iter("tr")}
    assert {name for name in done.ran if name not in {kind.check for kind in done.faults}} <= ran
    assert "rows are taken for training" in words(by_id(root, "verdict"))
    assert "it shows" in words(by_id(root, "reproduced"))
    done.unlocks = {"set `log_val_generations`": ["entropy", "ratio"]}
    root = check(diagnosis_report(done, lang=lang))
    assert "set log_val_generations (entropy, ratio)" in words(by_id(root, "unchecked"))


def test_nothing_wrong():
    root = check(diagnosis_report(Diagnosis()))
    assert "Nothing wrong found" in words(root.find("body/header/h1"))
    assert "Every check could run" in words(by_id(root, "unchecked"))
    assert "findings" not in [each.get("id") for each in root.iter()]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_comparison(lang):
    first = {seed: {"exact_success_rate": 0.5 + 0.01 * seed, "mean_actions": 3.0} for seed in range(4)}
    second = {seed: {"exact_success_rate": 0.4 + 0.012 * seed, "mean_actions": 3.0} for seed in range(4)}
    a = Run(path="r/<a>", experiment="agent", config={"updates": 1, "list": [1, 2]}, values=first)
    b = Run(path="r/b", experiment="agent", config={"updates": 2, "list": [1, 2]}, values=second)
    found = compare(a, b)
    root = check(comparison_report(found, b"\x89PNG", lang=lang))
    assert found.sentence() in words(by_id(root, "verdict"))
    assert "python -m labs compare 'r/<a>' r/b" in words(by_id(root, "what_ran"))
    rows = {words(row[0]): [words(cell) for cell in row[1:]] for row in by_id(root, "differing").iter("tr")}
    assert rows["updates"] == ["1", "2"]
    assert "list" not in rows
    numbers = {words(row[0]): words(row[3]) for row in by_id(root, "difference").iter("tr")}
    assert numbers["exact_success_rate"] == "0.097"
    terms = {words(each[0]) for each in by_id(root, "glossary").find("dl")}
    assert {"exact_success_rate", "mean_actions"} <= terms
    assert "success_rate" not in terms or "success_rate" in words(by_id(root, "glossary"))
    same = comparison_report(compare(a, a), lang=lang)
    assert len(list(by_id(check(same), "differing").iter("table"))) == 0


def test_a_large_pipeline_stays_small():
    rows = [
        {"task": i, "worker": i % 50, "start": i / 50, "end": i / 50 + 0.9, "ingested": i / 50 + 1, "trained": None,
         "start_version": 0, "ingestion_version": 2, "lag": i % 6, "update": None, "status": "rejected"}
        for i in range(30_000)
    ]  # fmt: skip
    both = schedules(Result(data={"big": {"trajectories": rows}}))
    glossary = Glossary("en")
    panel = pipeline_panel(both, glossary, "en")
    assert len(panel) < 700_000
    root = check(page("T", [Section(id="pipeline", title="P", body=panel), glossary.section()]))
    assert "Drawn are 1,500 of 30,000 trajectories, by 32 of 50 workers." in words(root)
    assert len([rect for rect in root.iter("rect") if rect.get("data-i")]) == 1500
    (area,) = [svg for svg in root.iter("svg") if svg.get("class") == "area"]
    assert "32 workers" in area.get("aria-label")
