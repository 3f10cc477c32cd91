"""The HTTP edge: guard, keys, limits, errors, SSE. Knows no dialect."""
