"""The commands of `python -m labs`, one file each: it defines `command`, and its docstring is its line in the list."""
