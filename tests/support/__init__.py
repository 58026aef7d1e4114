"""What tests are built from: `servers` on loopback, `builders` of wheels, archives, locks and images, and `machines`.

Wheels and index import neither envspec nor pytest: `python -m tests.support.servers.index` serves an index.
"""
