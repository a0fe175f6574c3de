"""What callers of ``engine_core.llm.LLM`` may write, made into what an engine takes; and ids back into text.

options            options by name, from any section of ``engine_core.config``
prompts            prompts of ``generate``;  conversations: messages of ``chat``
sampling_params    the engine's parameters, and those of text
numpy_to_python    callers' numbers as Python's own
text               the interface of text, and text by a tokenizer of the caller's
model_text         text by the model's own tokenizer and templates, as in the ring
call_thread        the thread that computes a call, whatever interrupts its caller
"""
