"""Drafters that compute their drafts, one file each; ``registry`` finds them."""
