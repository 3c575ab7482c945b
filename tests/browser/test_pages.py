"""The pages in a real browser."""

import base64
import math

import pytest

import labs
from labs import replay
from labs.compare import Run, compare
from labs.diagnosis import Examination
from labs.registry import checks, experiments
from labs.report import comparison_report, diagnosis_report, report
from tests.test_report import SMALL, STAMP

pytestmark = pytest.mark.slow

NAMES = ("agent", "agent.zh", "rollout", "rollout.zh", "diagnosis", "comparison")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    agent = labs.run("agent", **{**SMALL, "updates": 10})
    rollout = labs.run("rollout", tasks=60)
    examination = Examination()
    for name in ("score_sums", "equal_groups"):
        for step in next(iter(checks[name].BAD.values()))():
            examination.look(step)
    values = {seed: {"exact_success_rate": 0.5 + 0.1 * seed} for seed in range(4)}
    other = {seed: {"exact_success_rate": 0.4 + 0.12 * seed} for seed in range(4)}
    runs = [
        Run(path=f"r/{i}", experiment="agent", config={"updates": i}, values=v) for i, v in enumerate((values, other))
    ]
    made = {
        "agent": report([agent], stamp=STAMP),
        "agent.zh": report([agent], "zh", stamp=STAMP),
        "rollout": report([rollout], stamp=STAMP),
        "rollout.zh": report([rollout], "zh", stamp=STAMP),
        "diagnosis": diagnosis_report(examination.end(), typed="python -m labs diagnose x"),
        "comparison": comparison_report(compare(*runs)),
    }
    for name, page in made.items():
        (folder / f"{name}.html").write_bytes(page)
    return {name: folder / f"{name}.html" for name in made}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [390, 1100])
def test_opens_quietly_and_fits(browser, pages, name, width):
    browser.open(pages[name], width)
    assert browser.errors() == []
    assert browser.ask("return performance.getEntriesByType('resource').map((r) => r.name)") == []
    assert browser.ask("return document.documentElement.scrollWidth") <= width
    assert browser.ask("return [...document.images].every((i) => i.complete && i.naturalWidth > 100)")


CONTRAST = """
const number = (text) => text.match(/[\\d.]+/g).map(Number);
const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
const ground = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = number(getComputedStyle(e).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const poor = [];
for (const element of document.querySelectorAll("body *")) {
  if (!element.checkVisibility() || element.closest("svg, button:disabled, option")) continue;
  if (![...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
  const [a, b] = [light(number(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) poor.push(`${element.tagName}.${element.className} ${ratio.toFixed(2)}`);
}
return poor;
"""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out(browser, pages, name, dark):
    browser.open(pages[name], dark=dark)
    ground = browser.ask("return getComputedStyle(document.body).backgroundColor")
    assert (sum(int(c) for c in ground[4:-1].split(", ")) < 200) == dark
    assert browser.ask(CONTRAST) == []


def head(browser):
    return browser.one(".stage h3").text


def test_replay_steps(browser, pages):
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.select import Select

    browser.open(pages["agent"])
    back, forth = browser.one(".back"), browser.one(".forth")
    assert head(browser).startswith("step 1 / 3")
    assert not back.is_enabled()
    assert not any(each.is_displayed() for each in browser.all(".replay > .source"))
    forth.click()
    assert head(browser).startswith("step 2 / 3 · stage ready")
    assert browser.one(".stage .bars .on").text.endswith("sampled")
    heads = browser.one(".stage thead").text
    assert all(
        word in heads for word in ("attention_mask", "response_mask", "loss_mask", "reward", "advantage", "weight")
    )
    forth.click()
    assert head(browser).startswith("step 3 / 3")
    assert not forth.is_enabled()
    browser.ask("document.querySelector('.stage').focus()")
    browser.press(Keys.ARROW_LEFT)
    assert head(browser).startswith("step 2 / 3")
    browser.press(Keys.ARROW_RIGHT)
    assert head(browser).startswith("step 3 / 3")
    source, episode = (Select(each) for each in browser.all(".replay select"))
    names = [option.text for option in source.options]
    assert names[0] == "Update 1 of 10"
    assert names[-1] == "Held-out episodes after training"
    source.select_by_visible_text(names[-1])
    assert "policy version 10" in head(browser)
    assert "not in any loss" in browser.one(".stage > p").text
    episode.select_by_index(3)
    assert episode.first_selected_option.text.startswith("episode 3 · ")
    assert head(browser).startswith("step 1 / ")
    assert browser.errors() == []


def box(browser):
    return [float(x) for x in browser.one(".gantt .area").get_dom_attribute("viewBox").split()]


def test_gantt_zooms_and_opens_a_trajectory(browser, pages):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.open(pages["rollout"])
    ticks = lambda: [float(text.text) for text in browser.all(".gantt .ticks")[0].find_elements("css selector", "text")]  # noqa: E731
    _, _, whole, height = box(browser)
    first = ticks()
    assert first[0] == 0
    assert first[-1] <= whole
    browser.one(".gantt .in").click()
    assert box(browser) == pytest.approx([whole / 4, 0, whole / 2, height])
    assert ticks() != first
    assert all(whole / 4 <= tick <= whole * 3 / 4 for tick in ticks())
    browser.one(".gantt .later").click()
    assert box(browser)[0] == pytest.approx(whole / 2)
    browser.one(".gantt .earlier").click()
    browser.one(".gantt .earlier").click()
    assert box(browser)[0] == 0, "not before the start"
    browser.one(".gantt .out").click()
    assert box(browser)[2] == pytest.approx(whole)
    browser.ask("document.querySelector('.gantt .area').focus()")
    browser.press("+", Keys.ARROW_RIGHT)
    assert box(browser)[:1] + box(browser)[2:3] == pytest.approx([whole / 4 + whole / 8, whole / 2])
    browser.press("0")
    assert box(browser)[2] == pytest.approx(whole)
    # Dragging moves, a click opens.
    browser.press("+")
    area = browser.one(".gantt .area")
    before = box(browser)[0]
    ActionChains(browser.driver).move_to_element(area).click_and_hold().move_by_offset(100, 0).release().perform()
    assert box(browser)[0] < before
    assert browser.one(".life").text == ""
    browser.press("0")
    bar = next(bar for bar in browser.all(".gantt [data-i]") if bar.size["width"] > 20)
    bar.click()
    life = browser.one(".life").text
    assert "chosen" in bar.get_dom_attribute("class")
    assert bar.find_element("css selector", "title").get_attribute("textContent").split(" – ")[0].split(": ")[1] in life
    pick = browser.one(".gantt input")
    assert pick.get_attribute("value") == bar.get_dom_attribute("data-i")
    pick.clear()
    pick.send_keys("41", Keys.TAB)
    assert browser.one(".gantt .chosen").get_dom_attribute("data-i") == "41"
    assert browser.errors() == []


@pytest.mark.parametrize("name", NAMES)
def test_glossary_links_lead_to_their_entry(browser, pages, name):
    browser.open(pages[name])
    links = browser.ask("return [...new Set([...document.querySelectorAll('a.g')].map((a) => a.getAttribute('href')))]")
    assert len(links) > (0 if name in ("diagnosis", "comparison") else 10)
    for link in links:
        found = browser.ask(
            """const a = [...document.querySelectorAll('a.g')].find((a) => a.getAttribute('href') === arguments[0]);
            a.click();
            const entry = document.querySelector(':target');
            return [entry?.id, entry?.querySelector('dt').textContent, entry?.querySelector('dd').textContent];""",
            link,
        )
        assert found[0] == link[1:]
        assert found[1]
        assert found[2]
    assert browser.ask("return document.querySelector(':target').getBoundingClientRect().top") < 900


def test_keyboard_reaches_the_content(browser, pages):
    from selenium.webdriver.common.keys import Keys

    browser.open(pages["agent"])
    browser.press(Keys.TAB)
    assert browser.ask("return document.activeElement.className") == "skip"
    assert browser.ask("return document.activeElement.getBoundingClientRect().left") >= 0
    browser.press(Keys.ENTER)
    assert browser.ask("return document.activeElement.id") == "main"
    focused = set()
    for _ in range(12):
        browser.press(Keys.TAB)
        focused.add(browser.ask("return document.activeElement.getBoundingClientRect().top + scrollY"))
    assert len(focused) > 4, "the focus moves down the page"


def test_copies_the_command(browser, pages):
    browser.open(pages["agent"])
    button = browser.one(".copy button")
    button.click()
    said = browser.ask(
        """const done = arguments[0];
        return new Promise((resolve) => setTimeout(() => resolve([done.textContent, String(getSelection())]), 200))""",
        button,
    )
    command = "python -m labs.run --experiment agent --seed 7"
    assert said[0] == "Copied" or (said[0] == "Selected, copy it" and said[1].startswith(command))


@pytest.mark.parametrize("name", NAMES)
def test_reads_without_script(browser, pages, name):
    browser.open(pages[name], script=False)
    try:
        # What is asked for is read through the debugger, which works without the page's own scripts.
        tree = browser.command("DOM.getDocument", depth=1)["root"]["nodeId"]
        count = lambda selector: len(browser.command("DOM.querySelectorAll", nodeId=tree, selector=selector)["nodeIds"])  # noqa: E731
        assert count("button, select, input") == 0
        assert count("[hidden]") == 0
        assert count("section h2") > 2
        assert count("details .step") > 20 or not name.startswith("agent")
        assert count(".gantt rect title") > 60 or not name.startswith("rollout")
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("name", NAMES)
def test_prints(browser, pages, name):
    browser.open(pages[name], dark=True, media="print")
    assert not any(each.is_displayed() for each in browser.all("button, .controls, nav"))
    assert browser.ask("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask(CONTRAST) == []
    pdf = base64.b64decode(browser.command("Page.printToPDF", paperWidth=8.27, paperHeight=11.7)["data"])
    assert pdf.startswith(b"%PDF")
    assert 1 <= pdf.count(b"/Type /Page\n") <= 20


def test_a_trajectory_of_a_learning_pipeline_opens_its_decisions(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("labs.report.runs.figures", lambda name, results: {})
    run = labs.run("staleness", **experiments["staleness"].TINY)
    path = tmp_path / "page.html"
    path.write_bytes(report([run]))
    browser.open(path)
    from selenium.webdriver.common.keys import Keys

    pick = browser.one(".gantt input")
    pick.send_keys("9", Keys.TAB)
    (schedule, *_) = replay.schedules(run)
    life = browser.one(".life").text
    for step in schedule.rows[9]["steps"]:
        assert f"{step['stage']} → {step['action']} ({math.exp(step['log_probability']):.4f}, policy version" in life
        assert step["reply"] in life
    assert browser.errors() == []
