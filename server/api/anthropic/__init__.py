"""Anthropic's dialect: messages, counting their tokens, models."""
