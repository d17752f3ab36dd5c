"""Rows sorted by expert, in blocks of which each belongs to one: what the grouped products of `experts` go by."""
