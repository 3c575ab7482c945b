"""Commands of `python -m labs`: one file, one command."""
