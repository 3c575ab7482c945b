"""Reading the lab's HTML pages in tests: as XML, without scripts and style sheets."""

import re
import xml.etree.ElementTree as ElementTree


def parse(page: bytes):
    """The root element; raises where the page is not well-formed."""
    text = page.decode()
    assert text.startswith("<!DOCTYPE html>\n")
    bare = re.sub(r"<(script|style)>.*?</\1>", "", text.removeprefix("<!DOCTYPE html>"), flags=re.S)
    return ElementTree.fromstring(bare)


def words(element) -> str:
    """All text of an element."""
    return " ".join("".join(element.itertext()).split())


def by_id(root, name):
    """The element with that id."""
    (found,) = [each for each in root.iter() if each.get("id") == name]
    return found


def check(page: bytes):
    """What holds of every page; returns the root."""
    assert len(page) < 2_000_000
    root = parse(page)
    text = page.decode()
    for each in root.iter():
        for key, value in each.attrib.items():
            assert not key.startswith("on"), (each.tag, key)
            if key in ("href", "src"):
                assert re.match(r"#|data:(image/(png|svg\+xml);base64,|,$)", value), value[:80]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|<iframe|<base", text)
    assert "default-src 'none'" in by_equiv(root)
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(ids) == len(set(ids)), "an id twice"
    targets = {each.get("href")[1:] for each in root.iter("a")}
    assert targets <= set(ids), targets - set(ids)
    entries = {each for each in ids if each.startswith("g-")}
    assert entries == {each for each in targets if each.startswith("g-")}, "glossary and uses differ"
    for entry in entries:
        own = {id(link) for link in by_id(root, entry).iter("a")}
        assert any(a.get("href") == f"#{entry}" and id(a) not in own for a in root.iter("a")), f"{entry} only by itself"
    accessible(root)
    return root


def by_equiv(root) -> str:
    (policy,) = [m.get("content") for m in root.iter("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    return policy


def accessible(root) -> None:
    """Landmarks, headings without a gap, a skip link, alt texts, table heads, names of scrolling regions."""
    assert root.get("lang")
    assert [len(list(root.iter(tag))) for tag in ("main", "nav", "h1")] == [1, 1, 1]
    body = root.find("body")
    assert body[0].tag == "a"
    assert body[0].get("href") == "#main"
    level = 0
    for each in root.iter():
        if each.tag in ("h1", "h2", "h3", "h4"):
            assert int(each.tag[1]) <= level + 1, f"{words(each)} skips a level"
            level = int(each.tag[1])
            assert words(each)
        if each.tag == "img":
            assert len(each.get("alt")) > 20
        if each.tag == "table":
            assert words(each.find("caption"))
            assert all(head.get("scope") == "col" for head in each.find("thead").iter("th"))
            assert all(row[0].get("scope") == "row" for row in each.find("tbody"))
            assert len({len(row) for row in each.iter("tr")}) == 1, "rows of different lengths"
        if each.get("role") in ("region", "img", "group"):
            assert each.get("aria-label")
