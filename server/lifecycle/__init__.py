"""How the program starts and ends: ports, signals, the browser, a second double-click, extraction directories. No HTTP, no model."""
