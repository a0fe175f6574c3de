"""Stubs of the proto package ringline.inference.v1, generated."""
