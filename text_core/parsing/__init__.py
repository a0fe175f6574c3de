"""Divides an answer into typed parts: content, reasoning, tool calls. Pure: text in, parts out."""
