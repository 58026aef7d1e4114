"""PyPI packages: resolvers in front of one index on loopback."""
