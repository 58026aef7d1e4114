"""Finding the packages: one index on loopback, engines in front of it."""
