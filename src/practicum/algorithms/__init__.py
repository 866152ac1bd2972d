"""One file an algorithm: which tokens are trained on, toward what, with what credit. Losses are in `losses`."""
