"""`envspec doctor`: what this machine has and lacks for locking, building and running, each with what to do.

`examine.examine(place)` gathers facts through the effects of a `Place`, all at the same time, and judges them purely.
"""
