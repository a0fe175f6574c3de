"""Stubs of the proto package ringline.types, generated."""
