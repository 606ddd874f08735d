"""Batches from a source: read in order, changed at random, skipped to a position."""
