"""Converts the inputs of ``engine_core.llm.LLM`` to an engine's, and ids back to text.

options            options by name, from any section of ``engine_core.config``
prompts            prompts of ``generate``;  conversations: messages of ``chat``
outputs            results
sampling_params    the engine's parameters, and those of text
pooling            vectors, scores and labels;  pooling_params, pooling_outputs: their parameters and results
forms              the form of a text
numpy_to_python    callers' numbers to Python's
text               the interface to text, implemented with a caller's tokenizer
model_text         text with the model's own tokenizer and templates, as in the ring
worker_calls       what workers may be asked
call_thread        the thread that runs a call, even if its caller is interrupted
"""
