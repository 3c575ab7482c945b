"""A folder is a registry: listing imports nothing, names come from files, typing mistakes are answered."""

import subprocess
import sys
from pathlib import Path

import pytest

from labs.errors import LONG, InputError, one_of
from labs.registry import (
    KINDS,
    Registry,
    call,
    checks,
    commands,
    environments,
    estimators,
    exercises,
    experiments,
    load_file,
    losses,
    masks,
    opt,
    rewards,
)

ALL = [estimators, losses, rewards, masks, environments, experiments, exercises, checks, commands]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry of its own in a folder of its own."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "__init__.py").write_text('"""Entries."""\n')
    (tmp_path / "made" / "good.py").write_text('"""A good one.\n\nMore."""\n\ndef good(x):\n    return x\n')
    (tmp_path / "made" / "bad.py").write_text('"""No entry."""\nother = 1\n')
    (tmp_path / "made" / "_hidden.py").write_text("raise SystemExit\n")
    (tmp_path / "made" / "explodes.py").write_text('"""Imports badly."""\nraise RuntimeError("imported")\n')
    (tmp_path / "made" / "whole").mkdir()
    (tmp_path / "made" / "whole" / "__init__.py").write_text('"""A folder."""\nwhole = 3\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("labs.registry._ROOT", str(tmp_path))
    for name in [n for n in sys.modules if n.split(".")[0] == "made"]:
        monkeypatch.delitem(sys.modules, name)
    return Registry("thing", "made")


def test_names_come_from_files_and_folders_and_nothing_is_imported(folder: Registry) -> None:
    assert list(folder) == ["bad", "explodes", "good", "whole"]
    assert len(folder) == 4
    assert "good" in folder
    assert "_hidden" not in folder
    assert folder.describe("explodes") == "Imports badly."
    assert folder.describe("good") == "A good one."
    assert folder.path("whole").name == "__init__.py"
    assert "made.explodes" not in sys.modules


def test_asking_for_one_entry_imports_one_file(folder: Registry) -> None:
    assert folder["good"](4) == 4
    assert folder["whole"] == 3
    assert "made.explodes" not in sys.modules
    with pytest.raises(InputError, match=r"thing explodes: .*explodes\.py, line 2: RuntimeError: imported$") as caught:
        folder["explodes"]
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_file_that_does_not_parse_hides_no_other(folder: Registry) -> None:
    (folder.folder / "typo.py").write_text('"""A typing mistake."""\n\ndef typo(:\n    pass\n')
    (folder.folder / "lacking.py").write_text("import no_such_package_at_all\n")
    (folder.folder / "refuses.py").write_text("from labs.errors import InputError\n\nraise InputError('no')\n")
    assert folder.describe("typo") == "(cannot be read: line 3: invalid syntax)"
    assert folder.describe("good") == "A good one."
    with pytest.raises(InputError, match=r"thing typo: .*typo\.py, line 3: SyntaxError: invalid syntax$"):
        folder["typo"]
    with pytest.raises(InputError, match=r"lacking\.py, line 1: ModuleNotFoundError: No module named"):
        folder["lacking"]
    with pytest.raises(InputError, match=r"^no$"):
        folder["refuses"]


@pytest.mark.filterwarnings("ignore:passed over")
def test_what_goes_through_all_entries_passes_over_a_broken_one_and_says_so(folder: Registry) -> None:
    with pytest.warns(
        UserWarning, match=r"passed over: thing explodes: .*explodes\.py, line 2: RuntimeError"
    ) as caught:
        names = folder.sound()
    assert {"good", "whole"} <= set(names)
    assert "explodes" not in names
    assert any("bad.py does not define 'bad'" in str(each.message) for each in caught)


def test_of_many_names_only_close_ones_are_shown() -> None:
    many = [f"name{k}" for k in range(LONG)] + ["grpo"]
    assert str(one_of("entry", "grop", many)) == "entry is 'grop'; did you mean grpo?"
    assert str(one_of("entry", "x", many)) == (
        f"entry is 'x'; allowed: {LONG + 1} names, the first of them name0, name1, name2, name3, name4"
    )


def test_a_miss_offers_close_names(folder: Registry) -> None:
    for name in ("goood", "_hidden", "../good", ""):
        with pytest.raises(InputError, match="allowed: bad, explodes, good, whole"):
            folder[name]
    with pytest.raises(InputError, match=r"thing is 'goood'.*did you mean good\?"):
        folder["goood"]


def test_a_miss_in_a_shipped_registry_does_too() -> None:
    with pytest.raises(InputError, match=r"estimator is 'grpoo'; .*did you mean grpo"):
        estimators["grpoo"]


def test_a_file_without_its_entry_is_named(folder: Registry) -> None:
    with pytest.raises(InputError, match=r"thing bad: .*bad.py does not define 'bad'"):
        folder["bad"]
    needing = Registry("thing", "made", whole=True, needs=("run", "other"))
    with pytest.raises(InputError, match=r"thing bad: .*bad.py does not define run$"):
        needing["bad"]
    assert Registry("thing", "made", whole=True, needs=("other",))["bad"].other == 1


def test_entries_from_elsewhere_take_free_names_only(folder: Registry) -> None:
    with pytest.raises(InputError, match=r"thing 'good' is taken by .*good.py"):
        folder.add("good", object())

    def mine() -> None:
        """My own."""

    folder.add("mine", mine)
    assert folder["mine"] is mine
    assert folder.describe("mine") == "My own."
    assert list(folder)[-2:] == ["mine", "whole"]
    with pytest.raises(InputError, match="'mine' is taken by an entry added before"):
        folder.add("mine", mine)
    folder.remove("mine")
    assert "mine" not in folder


def test_the_decorator_checks_needs_against_parameters(folder: Registry) -> None:
    @folder.entry(needs=("values",), paper="nobody 2000")
    def one(*, values: int) -> int:
        return values

    assert one.needs == ("values",)
    assert one.meta == {"paper": "nobody 2000"}
    assert one(values=2) == 2, "the bare function is returned"
    with pytest.raises(InputError, match="thing two: needs values, which is no parameter of it"):

        @folder.entry(needs=("values",))
        def two(*, value: int) -> int:
            return value


def test_call_refuses_names_that_an_entry_would_swallow() -> None:
    def entry(token_level_rewards: int, response_mask: int, epsilon: float = 1.0, **_: object) -> float:
        return token_level_rewards * epsilon

    assert call(entry, token_level_rewards=2, response_mask=1, index=5, config=None, epsilon=3.0) == 6.0
    with pytest.raises(InputError, match="entry got epsilom; it takes epsilon, response_mask, token_level_rewards"):
        call(entry, token_level_rewards=2, response_mask=1, epsilom=3.0)


def test_opt_reads_mappings_objects_and_dotted_keys() -> None:
    class Block:
        gamma = 0.5

    assert opt(None, "gamma", 1.0) == 1.0
    assert opt({"gamma": 0.9}, "gamma", 1.0) == 0.9
    assert opt(Block(), "gamma", 1.0) == 0.5
    assert opt(Block(), "lam", 0.7) == 0.7
    assert opt({"inner": Block()}, "inner.gamma") == 0.5
    assert opt({"inner": None}, "inner.gamma", 2) == 2


def test_a_users_own_file_is_loaded_without_touching_the_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("value = 3\n")
    before = list(sys.path)
    assert load_file(tmp_path / "mine.py").value == 3
    assert sys.path == before
    with pytest.raises(InputError, match="is no file"):
        load_file(tmp_path / "other.py")
    (tmp_path / "typo.py").write_text("value = (\n")
    with pytest.raises(InputError, match=r"typo\.py, line 1: SyntaxError: '\(' was never closed"):
        load_file(tmp_path / "typo.py")
    (tmp_path / "fails.py").write_text("value = 1\nvalue / 0\n")
    with pytest.raises(InputError, match=r"fails\.py, line 2: ZeroDivisionError: division by zero"):
        load_file(tmp_path / "fails.py")


def test_listing_every_registry_imports_no_entry_and_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from labs.registry import KINDS\n"
        "names = [kind.describe(n) for kind in KINDS.values() for n in kind]\n"
        "heavy = {'numpy', 'torch', 'matplotlib', 'scipy', 'simpy'} & set(sys.modules)\n"
        "folders = ('labs.advantages', 'labs.losses', 'envs', 'experiments')\n"
        "entries = [m for m in sys.modules if m.startswith(folders)]\n"
        "print(len(names) > 60, sorted(heavy), entries)"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "True [] []"


@pytest.mark.parametrize("registry", ALL, ids=lambda r: r.package)
def test_every_entry_loads_under_its_file_name_and_says_what_it_is(registry: Registry) -> None:
    for name in registry:
        entry = registry[name]
        assert registry.describe(name), f"{registry.kind} {name} has no docstring"
        if registry in (estimators, losses, rewards, masks):
            assert entry.__name__ == name
            assert isinstance(entry.needs, tuple)


def test_the_kinds_a_user_lists_are_plurals_of_the_registries() -> None:
    assert KINDS["estimators"] is estimators
    for plural, registry in KINDS.items():
        assert plural in (registry.kind + "s", registry.kind + "es")
    assert "estimator is 'x'" in str(one_of("estimator", "x", ["a"]))
