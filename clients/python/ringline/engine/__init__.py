"""Stubs of the proto package ringline.engine, generated."""
