"""The layers models are made of; each gives the same bits for a row whatever else is in the batch."""
