"""Stubs of the proto package ringline.engine.v1, generated."""
