# ruff: noqa: E501  the templates are given as checkpoints have them
"""Chat templates in the styles of public model families, written for these tests."""

HEADERS = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now('%d %b %Y') %}
{%- endif %}
{{- 'Today: ' + date_string + '\\n' }}
{{- system }}
{%- if tools is not none %}
    {{- '\\nTools:\\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- '\\n' }}
    {%- endfor %}
{%- endif %}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('only one call at a time') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
"""With headers, a date, and tools listed as indented JSON."""

CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1, looking=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.looking and message.role == 'user' and message.content is string %}
        {%- set ns.looking = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- elif message.content is defined %}
        {%- set content %}
            {%- for part in message.content if part.type == 'text' %}{{ part.text }}{% endfor %}
        {%- endset %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>' ~ '\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning = message.reasoning_content if message.reasoning_content is string else '' %}
        {%- if not reasoning and '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and reasoning %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {%- generation %}{{ content }}{%- endgeneration %}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or not loop.first %}{{- '\\n' }}{%- endif %}
            {%- set call = call.function if call.function else call %}
            {{- '<tool_call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
"""ChatML with tools, reasoning and a switch among the template's arguments."""

BRACKETS = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{% set system = messages[0]['content'] %}{% set loop_messages = messages[1:] %}
{% else %}{% set loop_messages = messages %}{% endif %}
{% macro show(tool) -%}
{"type": "function", "function": { {%- for key, value in tool.function.items() if key != "return" %}"{{ key }}": {{ value | tojson }}{{ ", " if not loop.last }}{% endfor -%} }}
{%- endmacro %}
{% for message in loop_messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate!') }}{% endif %}
{% if message['role'] == 'user' %}
{% if tools and loop.last %}{{ '[AVAILABLE_TOOLS] [' }}{% for tool in tools %}{{ show(tool) }}{{ ', ' if not loop.last }}{% endfor %}{{ ']' }}{% endif %}
{% if loop.last and system is defined %}{{ '[INST] ' + system + '\\n\\n' + message['content'] + ' [/INST]' }}
{% else %}{{ '[INST] ' ~ message['content'] ~ ' [/INST]' }}{% endif %}
{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] | trim + eos_token }}{% if loop.index > 7 %}{% break %}{% endif %}
{% else %}{{ raise_exception('Only user and assistant roles are supported, not ' + message['role'] + '!') }}{% endif %}
{% endfor %}
"""
"""Instruction brackets, alternating roles, a macro."""

DOCUMENTS = """{% for d in documents or [] %}<doc id={{ loop.index0 }}>{{ d.title }}: {{ d['text'] }}</doc>
{% endfor %}{% for m in messages %}{{ m.role | upper }}: {{ m.content }}
{% endfor %}{{ "ASSISTANT:" if add_generation_prompt }}{{ bos_token }}{{ eos_token }}{{ [1, 'a', none, true] }}
{{ messages | map(attribute='role') | join(', ') }} {{ ['x', 'y'] | join }} {{ '%s-%03d' | format('a', 7) }}
{{ 'line one\\nline two' | indent(2) }} {{ 'banana' | replace('a', 'o', 2) }} {{ 3.14159 | round(2) }} {{ 2 ** 10 }}
{{ ','.join(['p', 'q']) }} {{ 'a-b'.replace('-', '+') }} {{ '{:>4}|{}'.format('r', 1) }} {{ 'ab' * 3 }} {{ [0] * 2 }}
{{ dict(a=1) | tojson(sort_keys=true) }} {{ {'z': 'é', 'y': [1]} | tojson(ensure_ascii=true, separators=(',', ':')) }}
{{ ('%d' % 5) + ('x' ~ 1 ~ none) }} {{ range(3) | list | string | length }} {{ undefined_name }} {{ 'é😀' | tojson }}
"""
"""Retrieved documents, and the filters and operators that the sandbox bounds."""
