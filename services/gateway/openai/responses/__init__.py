"""``/v1/responses`` without storage: requests and responses made of items, and streamed events."""
