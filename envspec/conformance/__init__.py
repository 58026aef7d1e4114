"""The conformance suite: it proves inside an image, or in any Python, that the stack there runs on this machine.

What stands here is copied beside the stack and runs with its Python. It needs the standard library of Python 3.9 and
what it tests, and imports nothing else of envspec but `envspec.verifier`.

    run.py (the suite) -> one process a check -> lines of events -> results.json
"""
