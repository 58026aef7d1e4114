"""What the lock folder holds, and what is read from it."""
