"""Implementations of the Sampler and Trainer seams. Importing this package imports none of them."""
