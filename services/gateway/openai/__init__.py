"""OpenAI's endpoints: chat completions, completions, models."""
