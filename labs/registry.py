"""A folder is a registry, a file an entry.

The name of an entry is the name of its file, so listing a registry reads the folder and imports nothing;
asking for one entry imports one file. The entry is the module attribute of the same name (`rloo` in
`rloo.py`), or, for registries of whole modules (experiments), the module itself. Adding an entry is adding
a file: there is no list to edit.

>>> from labs.registry import estimators
>>> "grpo" in estimators
True
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from labs.errors import InputError, one_of

if TYPE_CHECKING:
    from pathlib import Path

F = TypeVar("F", bound=Callable[..., Any])

#: Columns that verl's dispatcher may pass to any estimator; `**_` of an entry may swallow these and no others.
VERL_COLUMNS = frozenset(
    {
        "token_level_rewards", "response_mask", "index", "config", "reward_baselines", "values", "gamma", "lam",
        "old_log_probs", "sum_pi_squared", "rollout_is_weights", "non_tensor_batch", "batch",
        "norm_adv_by_std_in_grpo", "epsilon",
    }
)  # fmt: skip

_ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


class Registry(Mapping[str, Any]):
    """The entries of one folder, by file name.

    Args:
        kind: singular noun used in messages and by `labs list KIND`.
        package: dotted name of the folder.
        whole: the entry is the module itself rather than its attribute of the same name.
        needs: what every entry of a registry of whole modules must define.
    """

    def __init__(self, kind: str, package: str, *, whole: bool = False, needs: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.package = package
        self._whole = whole
        self._needs = needs
        self._extra: dict[str, Any] = {}

    @property
    def folder(self) -> Path:
        """The folder that holds the entries."""
        from pathlib import Path  # paths as text are enough to find an entry, and pathlib costs a start 6 ms

        return Path(self._folder)

    @property
    def _folder(self) -> str:
        return os.path.join(_ROOT, *self.package.split("."))

    def path(self, name: str) -> Path:
        """The file (or, for a folder entry, its `__init__.py`) of entry `name`; raises `InputError` on a miss."""
        from pathlib import Path

        return Path(self._path(name))

    def _path(self, name: str) -> str:
        stem = os.path.join(self._folder, name)
        for candidate in (f"{stem}.py", os.path.join(stem, "__init__.py")):
            if name.isidentifier() and not name.startswith("_") and os.path.isfile(candidate):
                return candidate
        raise self.unknown(name)

    def unknown(self, name: str) -> InputError:
        """The error for a name that is not here, with close names."""
        return one_of(f"{self.kind}", name, list(self))

    def __iter__(self) -> Iterator[str]:
        found = os.listdir(self._folder) if os.path.isdir(self._folder) else []
        names = {name.removesuffix(".py") for name in found if name.endswith(".py")}
        names |= {name for name in found if os.path.isfile(os.path.join(self._folder, name, "__init__.py"))}
        return iter(sorted({n for n in names if not n.startswith("_")} | set(self._extra)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def sound(self) -> list[str]:
        """The names whose files can be imported; any other is passed over with a warning that says what is wrong.

        For what goes through all entries: one broken file of a user's must not stop it.
        """
        import warnings

        names = []
        for name in self:
            try:
                self[name]
            except InputError as error:
                warnings.warn(f"passed over: {error}", stacklevel=2)
            else:
                names.append(name)
        return names

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def __getitem__(self, name: str) -> Any:
        if name in self._extra:
            return self._extra[name]
        path = self._path(name)
        try:
            module = importlib.import_module(f"{self.package}.{name}")
        except InputError:
            raise
        except Exception as error:
            raise _broken(f"{self.kind} {name}: {path}", path, error) from error
        if self._whole:
            missing = [n for n in self._needs if not hasattr(module, n)]
            if missing:
                raise InputError(f"{self.kind} {name}: {self.path(name)} does not define {', '.join(missing)}")
            return module
        if not hasattr(module, name):
            raise InputError(f"{self.kind} {name}: {self.path(name)} does not define {name!r}")
        return getattr(module, name)

    def describe(self, name: str) -> str:
        """First line of the entry's docstring, read without importing the file; or why it cannot be read."""
        if name in self._extra:
            return (inspect.getdoc(self._extra[name]) or "").split("\n", 1)[0]
        try:
            doc = ast.get_docstring(ast.parse(self.path(name).read_text(encoding="utf-8"))) or ""
        except (SyntaxError, ValueError) as error:  # one broken file must not hide the others
            return f"(cannot be read: line {getattr(error, 'lineno', None) or 1}: {getattr(error, 'msg', error)})"
        return doc.split("\n", 1)[0]

    def add(self, name: str, entry: Any) -> None:
        """Add an entry that lives outside the folder (a user's own file) under a name that is still free."""
        if name in self:
            holder = "an entry added before" if name in self._extra else self._path(name)
            raise InputError(f"{self.kind} {name!r} is taken by {holder}")
        self._extra[name] = entry

    def remove(self, name: str) -> None:
        """Forget an entry that `add` brought."""
        del self._extra[name]

    def entry(self, *, needs: tuple[str, ...] = (), **meta: Any) -> Callable[[F], F]:
        """Decorate the function of an entry with what it declares.

        Args:
            needs: columns beyond the ones every call has; each must be a parameter of the function.
            **meta: data for tests, `labs show` and adapters (`paper`, `verl`, `properties`, ...).

        The bare function is returned with `needs` and `meta` as attributes. Raises `InputError` at import if
        `needs` and the parameters disagree, or if the function does not carry the name of its file.
        """

        def decorate(function: F) -> F:
            parameters = inspect.signature(function).parameters
            lacking = [n for n in needs if n not in parameters]
            if lacking:
                raise InputError(
                    f"{self.kind} {function.__name__}: needs {', '.join(lacking)}, which is no parameter of it"
                )
            function.__dict__["needs"] = tuple(needs)
            function.__dict__["meta"] = dict(meta)
            return function

        return decorate


def call(function: Callable[..., Any], **columns: Any) -> Any:
    """Call an entry by keyword and refuse names that it would silently swallow.

    `**_` in an entry exists for the columns that verl passes to every estimator. A name that is neither a
    parameter of the entry nor one of those is a typing mistake and raises `InputError`.
    """
    parameters = inspect.signature(function).parameters
    named = {n for n, p in parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
    stray = [n for n in columns if n not in named and n not in VERL_COLUMNS]
    if stray:
        known = ", ".join(sorted(named))
        raise InputError(f"{function.__name__} got {', '.join(stray)}; it takes {known}")
    return function(**columns)


def opt(config: Any, key: str, default: Any = None) -> Any:
    """Read `key` from `config` as verl's call sites do.

    Args:
        config: None, a mapping (dict, OmegaConf) or an object with attributes (dataclass).
        key: the field; `a.b` descends.
        default: returned when `config` is None or has no such field.
    """
    for part in key.split("."):
        if config is None:
            return default
        if isinstance(config, Mapping) or hasattr(config, "get"):
            config = config.get(part, default)
        else:
            config = getattr(config, part, default)
    return config


def load_file(path: Path) -> ModuleType:
    """Import a user's own Python file as a module of its own, without putting its folder on `sys.path`.

    Raises:
        InputError: no such file, or it raises when it is imported; the sentence names the line.
    """
    import importlib.util

    if not path.is_file():
        raise InputError(f"{path} is no file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except InputError:
        raise
    except Exception as error:
        raise _broken(str(path), str(path), error) from error
    return module


def _broken(what: str, path: str, error: Exception) -> InputError:
    """The sentence for a file that cannot be imported: which line of it, and what was raised there."""
    import traceback

    def here(file: str | None) -> bool:
        return file is not None and os.path.realpath(file) == os.path.realpath(path)

    if isinstance(error, SyntaxError) and here(error.filename):
        return InputError(f"{what}, line {error.lineno}: {type(error).__name__}: {error.msg}")
    own = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if here(frame.filename)]
    return InputError(f"{what}{f', line {own[-1]}' if own else ''}: {type(error).__name__}: {error}")


estimators = Registry("estimator", "labs.advantages")
losses = Registry("loss", "labs.losses")
rewards = Registry("reward", "labs.rewards")
masks = Registry("mask", "labs.masks")
environments = Registry("environment", "envs")
experiments = Registry("experiment", "experiments", whole=True, needs=("Config", "run", "figures"))
exercises = Registry("exercise", "labs.exercises", whole=True)
checks = Registry("check", "labs.checks", whole=True)
dumps = Registry("format", "labs.dumps", whole=True, needs=("recognise", "read"))
exports = Registry("export", "labs.exports")
commands = Registry("command", "labs.commands", whole=True)

#: The registries a user can list, by the plural that `labs list` takes.
KINDS: dict[str, Registry] = {
    "estimators": estimators,
    "losses": losses,
    "rewards": rewards,
    "masks": masks,
    "environments": environments,
    "experiments": experiments,
    "exercises": exercises,
    "checks": checks,
    "formats": dumps,
    "exports": exports,
}
