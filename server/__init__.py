"""Capsule's server: the rooms a request walks through, top to bottom (spec/architecture.md)."""

__version__ = "0.1.0"
