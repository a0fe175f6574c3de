"""Tokenizers and text, for the services and for ``LLM``. Pure: no gRPC, no asyncio, no engine.

In reading order:

tokenizer_files, special_tokens, tokenizer         a checkpoint's tokenizer, loaded like in transformers
chat_templates, system_messages, message_turns     messages → prompt text
template_sandbox, template_budget                  bounds of a template's time and size
pieces, incremental_decoder, stop_strings          ids → text one by one; stop strings in growing text
choice_decoder                                     combines these for one choice: ids in, deltas out
parsing                                            an answer's text → reasoning, content and tool calls
grammar, answer_grammar                            what a client asks of an answer's form → a grammar, checked
panics                                             panics of libraries written in Rust, as errors
"""
