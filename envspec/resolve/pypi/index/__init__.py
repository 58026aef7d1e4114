"""The index on loopback that resolvers see, and the client of the real ones."""
