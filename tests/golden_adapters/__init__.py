"""How each recorded function of a peer is called in the lab: no formula, no case name.

One module a family. A module defines `ADAPTERS`: dotted path of the peer's function -> a callable that takes
`(config, inputs)` of a row and returns the dictionary of outputs that the row lists, or raises what the lab
raises. A module may define `EXCUSED`: case name -> reason (only for rows that record a peer's accident).
"""

import importlib
import pkgutil


def _modules():
    return [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]


def adapters():
    """Dotted path of the peer's function -> adapter; a path that two modules claim is an error."""
    table = {}
    for module in _modules():
        for path, adapter in getattr(module, "ADAPTERS", {}).items():
            assert path not in table, f"{path} has two adapters"
            table[path] = adapter
    return table


def excused():
    """Case name -> why this row is deliberately not matched."""
    table = {}
    for module in _modules():
        table.update(getattr(module, "EXCUSED", {}))
    return table
