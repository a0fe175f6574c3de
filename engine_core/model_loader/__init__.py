"""From a checkpoint to a model with its weights.

loader             builds the model and gives it its weights   (read first)
location, checkpoint   where a checkpoint is, and what it says about itself; formats: what is there instead
hub, packaged      checkpoints on the hub, and in Python packages
gguf               those in GGUF files
safetensors_reader, dummy   where tensors come from; digest: a hash of every byte of them
tokenizer, convert_tokenizer   a model's tokenizer, for offline use and for the CPU tiers; made of other files by
                   sentencepiece_bpe, tekken and gguf.tokenizer, with the parts in tokenizer_json
"""
