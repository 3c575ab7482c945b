"""A laboratory for tool-using agents that learn from reward, small enough to be exact.

`labs.run("agent", seed=7)` runs an experiment from Python and returns its result; everything else is
imported from the module that owns it (`labs.registry`, `labs.masked`, `labs.batch`, ...). Importing this
package imports nothing else.
"""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # `labs.run` is both the module behind `python -m labs.run` and a function: the module is callable,
    # and it is imported only when asked for so that `import labs` stays free.
    if name == "run":
        import importlib

        return importlib.import_module("labs.run")
    raise AttributeError(f"module 'labs' has no attribute {name!r}")
