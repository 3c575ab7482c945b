"""Readers of what training runs leave behind, one file a format: `recognise(source)` and `read(source)`."""
