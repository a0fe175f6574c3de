"""Stubs of the proto package ringline.types.v1, generated."""
