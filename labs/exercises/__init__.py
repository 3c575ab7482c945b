"""The ladder of exercises: one folder each, see `labs/grading/spec.py` for what a folder holds."""
