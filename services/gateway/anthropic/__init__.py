"""Anthropic's endpoints: messages, and how many tokens they have."""
