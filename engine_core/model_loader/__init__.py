"""Load a model and its weights from a checkpoint.

loader             builds the model and loads its weights   (read first)
location, checkpoint   find a checkpoint and read its configuration; formats: errors for unsupported files
hub, packaged      checkpoints on the hub, and in Python packages
gguf               checkpoints in GGUF files
safetensors_reader, dummy   sources of tensors; digest: a hash of all their bytes
generation_config  defaults of sampling; chat_template: the option of that name
torch_reader, pickled_tensors   where tensors lie in PyTorch's files; stored_tensor: such a place
tokenizer, convert_tokenizer   a model's tokenizer, for offline use and for the CPU tiers; converted from other files by
                   sentencepiece_bpe, tekken and gguf.tokenizer, with the parts in tokenizer_json
"""
