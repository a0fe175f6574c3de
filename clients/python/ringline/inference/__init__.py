"""Stubs of the proto package ringline.inference, generated."""
