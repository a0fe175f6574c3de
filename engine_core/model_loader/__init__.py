"""From a checkpoint to a model with its weights.

loader             builds the model and gives it its weights   (read first)
location, checkpoint   where a checkpoint is, and what it says about itself; formats: what is there instead
safetensors_reader, dummy   where tensors come from; digest: a hash of every byte of them
tokenizer, convert_tokenizer   a model's tokenizer, for offline use and for the CPU tiers
"""
