"""``/v1/responses`` without storage: requests of items, responses of items, and the events between."""
