"""Writers of stored runs for other programs, one a file: `NAME(runs, output) -> what was written, in one line`.

`runs` is what `labs.exporting.load` returns. Each imports its library only when called, and says which extra brings it.
"""
