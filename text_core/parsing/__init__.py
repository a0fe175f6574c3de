"""Divides an answer into typed parts: content, reasoning, tool calls. Pure: text in, parts out.

In reading order:

formats, format, parts          which format a chat template uses; what a format and an answer consist of
choice_parser, text_parser     one choice's growing text → parts
think, reasoning_meter         reasoning between marks, and its tokens
answer_gate, content_tokens    where the answer begins behind reasoning; which tokens wrote its content
hermes, llama3_json, mistral, pythonic, deepseek, harmony
                               a model family's format of calls, one file each
json_calls, json_scanner, python_scanner, marks
                               calls in JSON, in Python's notation, and the marks around them
tool_grammar                   the grammar that forces a call
"""
