"""OpenAI's endpoints: chats, completions, responses, models."""
