"""Looking inside: traces, lenses, ledgers."""
