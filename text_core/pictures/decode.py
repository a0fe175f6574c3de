"""Opens pictures with Pillow, and makes their views."""
