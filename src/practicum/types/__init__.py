"""Frozen records and the seams between parts. Facts are stored; everything else is derived from them."""
