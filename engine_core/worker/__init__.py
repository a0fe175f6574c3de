"""The worker: keeps the state of the batch, runs the model over it and draws the next tokens."""
