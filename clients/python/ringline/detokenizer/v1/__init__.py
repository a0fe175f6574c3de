"""Stubs of the proto package ringline.detokenizer.v1, generated."""
