"""One reader per family: what the fields of its config.json mean, as layers."""
