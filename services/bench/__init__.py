"""Drives load and measures it: what ``ringline bench`` does, without its flags."""
