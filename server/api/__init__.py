"""Dialects: wire JSON -> GenerationRequest, events -> wire JSON. Pure translation."""
