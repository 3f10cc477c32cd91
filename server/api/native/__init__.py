"""llama-server's own dialect, and the routes about the server itself."""
