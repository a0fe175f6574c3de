"""Divides an answer into typed parts: content, reasoning, calls of tools. Pure: text in, parts out."""
