"""Layers of an image: tar, gzip, recipes over wheels, the cache."""
