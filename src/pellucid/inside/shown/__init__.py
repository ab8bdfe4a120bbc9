"""What pages show of a run: each a function from a run to plain data, or to arrays packed as few bytes."""
