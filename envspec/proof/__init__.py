"""Conformance from outside: what the suite is asked for, and where it runs."""
