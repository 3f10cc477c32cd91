"""Where weights come from: names, files and packages -> a local GGUF."""
