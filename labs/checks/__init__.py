"""One check a file; see `labs.evidence` for what each defines."""
