"""Attacks, each as a test that fails where it gets through."""
