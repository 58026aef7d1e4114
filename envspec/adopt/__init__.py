"""Locks of other tools as packages of an envspec.lock: nothing is resolved."""
