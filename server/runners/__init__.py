"""The front's side of the runner processes: start, watch, restart, talk."""
