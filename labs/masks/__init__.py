"""Rules that remove tokens or rows from the loss: one file, one entry of `labs.registry.masks`."""
