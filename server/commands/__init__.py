"""One file per command of the executable; each exports main(argv) -> exit code."""
