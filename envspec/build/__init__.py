"""Wheels of what is locked as source: built once, the same bytes wherever they are built again."""
