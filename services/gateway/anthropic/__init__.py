"""Anthropic's endpoints: messages, and counting their tokens."""
