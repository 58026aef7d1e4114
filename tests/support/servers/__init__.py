"""Servers on loopback: indexes, channels, registries, git and apt, which misbehave where a test says so."""
