"""What the tests build their world from: wheels made in memory, and a misbehaving index on loopback.

Wheels and index import neither envspec nor pytest: a shell can use it as well (`python -m tests.support.index_server`).
"""
