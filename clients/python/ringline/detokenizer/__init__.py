"""Stubs of the proto package ringline.detokenizer, generated."""
