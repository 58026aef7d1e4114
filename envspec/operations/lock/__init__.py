"""What `envspec lock` and `lock --check` do: a spec to its lock folder, and a lock against its spec."""
