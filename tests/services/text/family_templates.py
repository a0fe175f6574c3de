# ruff: noqa: E501  the templates are given as checkpoints have them
"""Chat templates, written for these tests after what the publishers of families document of the formats."""

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

GEMMA_4 = """{%- macro value_of(x) -%}
    {%- if x is string -%}<|"|>{{ x }}<|"|>
    {%- elif x is boolean -%}{{ 'true' if x else 'false' }}
    {%- elif x is mapping -%}{ {%- for key, inner in x | dictsort -%}{{ key }}:{{ value_of(inner) }}{{ ',' if not loop.last }}{%- endfor -%} }
    {%- elif x is sequence -%}[{%- for inner in x -%}{{ value_of(inner) }}{{ ',' if not loop.last }}{%- endfor -%}]
    {%- else -%}{{ x }}{%- endif -%}
{%- endmacro -%}
{%- macro without_thoughts(text) -%}
    {%- set ns = namespace(kept='') -%}
    {%- for part in text.split('<channel|>') -%}{%- set ns.kept = ns.kept + part.split('<|channel>')[0] -%}{%- endfor -%}
    {{ ns.kept | trim }}
{%- endmacro -%}
{{ bos_token }}
{%- set thinks = enable_thinking is defined and enable_thinking -%}
{%- if thinks or tools or messages[0].role in ['system', 'developer'] -%}
    {{ '<|turn>system\\n' + ('<|think|>' if thinks else '') }}
    {%- if messages[0].role in ['system', 'developer'] -%}
        {{ messages[0].content | trim }}{%- set messages = messages[1:] -%}
    {%- endif -%}
    {%- for tool in tools or [] -%}
        {{ '<|tool>declaration:' + tool.function.name + value_of(tool.function.parameters) + '<tool|>' }}
    {%- endfor -%}
    {{ '<turn|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
    {{ '<|turn>' + message.role | replace('assistant', 'model') + '\\n' }}
    {%- for call in message.tool_calls | default([], true) -%}
        {{ '<|tool_call>call:' + call.function.name + value_of(call.function.arguments) + '<tool_call|>' }}
    {%- endfor -%}
    {%- if message.content is string -%}
        {{ without_thoughts(message.content) if message.role == 'assistant' else message.content | trim }}
    {%- else -%}
        {{ message.content | default([]) | selectattr('type', 'equalto', 'text') | map(attribute='text') | join('\\n') }}
    {%- endif -%}
    {{ '<turn|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|turn>model\\n' + ('' if thinks else '<|channel>thought\\n<channel|>') }}{%- endif -%}
"""
"""Recursive macros over sorted mappings; a system turn for tools and for the switch of thinking."""

HARMONY = """{%- macro type_of(schema) -%}
    {%- if schema.type == 'array' -%}{{ type_of(schema['items'] or {'type': 'any'}) }}[]
    {%- elif schema.type == 'object' -%}
        {{- '{\\n' }}
        {%- for name, inner in (schema.properties or {}).items() -%}
            {%- if inner.description -%}{{ '// ' + inner.description + '\\n' }}{%- endif -%}
            {{ name ~ ('?' if name not in (schema.required or []) else '') ~ ': ' ~ type_of(inner) }}
            {%- if inner.default is defined -%}{{ ', // default: ' ~ inner.default | tojson }}{%- endif -%}{{ ',\\n' }}
        {%- endfor -%}
        {{ '}' }}
    {%- elif schema.enum -%}{{ '"' + schema.enum | join('" | "') + '"' }}
    {%- elif schema.type is iterable and schema.type is not string -%}{{ schema.type | join(' | ') }}
    {%- elif schema.type in ('integer', 'number') -%}number
    {%- else -%}{{ schema.type or 'any' }}{%- endif -%}
{%- endmacro -%}
{%- set identity = model_identity if model_identity is defined else 'You are a model.' -%}
{{- '<|start|>system<|message|>' + identity + '\\nCurrent date: ' + strftime_now('%Y-%m-%d') + '\\n\\nReasoning: ' + (reasoning_effort | default('medium')) }}
{{- '\\n\\n# Valid channels: analysis, commentary, final.<|end|>' }}
{%- if messages[0].role in ('developer', 'system') %}
    {%- set instructions = messages[0].content %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- if instructions or tools %}
    {{- '<|start|>developer<|message|>' }}
    {%- if instructions %}{{- '# Instructions\\n\\n' + instructions }}{%- endif %}
    {%- if tools %}
        {{- '\\n\\n# Tools\\n\\n## functions\\n\\nnamespace functions {\\n' }}
        {%- for tool in tools %}
            {%- set tool = tool.function %}
            {{- '\\n// ' ~ tool.description ~ '\\ntype ' ~ tool.name ~ ' = (' }}
            {%- if tool.parameters and tool.parameters.properties %}{{- '_: ' ~ type_of(tool.parameters) }}{%- endif %}
            {{- ') => any;\\n' }}
        {%- endfor %}
        {{- '\\n} // namespace functions' }}
    {%- endif %}
    {{- '<|end|>' }}
{%- endif %}
{%- set called = namespace(name=none) %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- if message.content and '<|channel|>' in message.content %}{{- raise_exception('content must not have channels') }}{%- endif %}
        {%- if message.tool_calls %}
            {%- if message.tool_calls | length > 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
            {%- set call = message.tool_calls[0].function %}
            {%- if message.thinking %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{%- endif %}
            {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' + call.arguments | tojson + '<|call|>' }}
            {%- set called.name = call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {%- if message.thinking %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{%- endif %}
            {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|return|>' }}
        {%- else %}
            {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
        {%- endif %}
    {%- elif message.role == 'tool' %}
        {%- if called.name is none %}{{- raise_exception('a tool answers without a call') }}{%- endif %}
        {{- '<|start|>functions.' + called.name + ' to=assistant<|channel|>commentary<|message|>' + message.content | tojson + '<|end|>' }}
    {%- else %}
        {{- '<|start|>user<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}
"""
"""Channels, today's date, tools as types in a developer message."""

PHI_3 = """{% for message in messages %}{% if message.role == 'system' and message.content %}{{ '<|system|>\\n' + message['content'] + '<|end|>\\n' }}{% elif message.role == 'user' %}{{ '<|user|>\\n' + message['content'] + '<|end|>\\n' }}{% elif message.role == 'assistant' %}{{ '<|assistant|>\\n' + message['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""
"""No bos; line breaks behind the markers, which strip them when they are encoded."""

GLM_4 = """[gMASK]<sop>
{%- if tools %}
    {{- '<|system|>\\n# Tools' }}
    {%- for tool in tools %}{{- '\\n' ~ tool | tojson(ensure_ascii=False) }}{%- endfor %}
{%- endif %}
{%- macro visible(content) %}
    {%- if content is string %}{{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for part in content %}
            {%- if part is mapping and part.type == 'text' %}{{- part.text }}{%- elif part is string %}{{- part }}{%- endif %}
        {%- endfor %}
    {%- else %}{{- content }}{%- endif %}
{%- endmacro %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{- '<|user|>\\n' ~ visible(m.content) ~ ('/nothink' if enable_thinking is defined and not enable_thinking and not visible(m.content).endswith('/nothink') else '') }}
    {%- elif m.role == 'assistant' %}
        {{- '<|assistant|>' }}
        {%- set reasoning = '' %}
        {%- set content = visible(m.content) %}
        {%- if m.reasoning_content is string %}{%- set reasoning = m.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '\\n<think>' + (reasoning.strip() if loop.index0 > ns.last else '') + '</think>' }}
        {%- if content.strip() %}{{- '\\n' + content.strip() }}{%- endif %}
        {%- for call in m.tool_calls or [] %}
            {{- '\\n<tool_call>' + call.function.name }}
            {%- for key, value in call.function.arguments.items() %}
                {{- '\\n<arg_key>' ~ key ~ '</arg_key>\\n<arg_value>' }}{{- value if value is string else value | tojson(ensure_ascii=False) }}{{- '</arg_value>' }}
            {%- endfor %}
            {{- '\\n</tool_call>' }}
        {%- endfor %}
    {%- elif m.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|observation|>' }}{%- endif %}
        {{- '\\n<tool_response>\\n' ~ visible(m.content) ~ '\\n</tool_response>' }}
    {%- elif m.role == 'system' %}{{- '<|system|>\\n' ~ visible(m.content) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' ~ ('\\n<think></think>' if enable_thinking is defined and not enable_thinking else '') }}{%- endif %}
"""
"""Begins with the two special tokens that a text gets, too; reasoning of the last turn only."""

DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(system='', any_system=false, calling=false, answered=false) %}
{%- for message in messages if message['role'] == 'system' %}
    {%- set ns.system = ns.system + ('\\n\\n' if ns.any_system else '') + message['content'] %}
    {%- set ns.any_system = true %}
{%- endfor %}
{{- bos_token }}{{ ns.system }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{%- continue %}{%- endif %}
    {%- if message['role'] == 'user' %}{%- set ns.calling = false %}{{- '<｜User｜>' + message['content'] }}{%- endif %}
    {%- if message['role'] == 'assistant' and 'tool_calls' in message %}
        {%- if not ns.calling %}{{- '<｜Assistant｜>' + (message['content'] or '') + '<｜tool▁calls▁begin｜>' }}{%- set ns.calling = true %}{%- endif %}
        {%- for call in message['tool_calls'] %}
            {{- '\\n' if not loop.first else '' }}{{- '<｜tool▁call▁begin｜>' + call['type'] + '<｜tool▁sep｜>' + call['function']['name'] + '\\n```json\\n' + call['function']['arguments'] | tojson + '\\n```<｜tool▁call▁end｜>' }}
        {%- endfor %}
        {{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
    {%- elif message['role'] == 'assistant' %}
        {%- set content = message['content'] %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
        {{- ('' if ns.answered else '<｜Assistant｜>') + content + '<｜end▁of▁sentence｜>' }}{%- set ns.answered = false %}
    {%- elif message['role'] == 'tool' %}
        {{- '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}{%- set ns.answered = true %}
    {%- endif %}
    {%- if loop.index > 50 %}{%- break %}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and not ns.answered %}{{- '<｜Assistant｜>' }}{%- endif %}
"""
"""All system messages first, then loops that remember; ``continue`` and ``break``."""

DEEPSEEK_V3 = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(calling=false, answering=false) %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{{- message['content'] }}{%- endif %}
    {%- if message['role'] == 'user' %}{%- set ns.calling = false %}{{- '<｜User｜>' + message['content'] }}{%- endif %}
    {%- if message['role'] == 'assistant' and message['content'] is none %}
        {%- set ns.calling = true %}
        {%- for call in message['tool_calls'] %}
            {{- ('<｜Assistant｜><｜tool▁calls▁begin｜>' if loop.first else '\\n') + '<｜tool▁call▁begin｜>' + call['type'] + '<｜tool▁sep｜>' + call['function']['name'] + '\\n```json\\n' + call['function']['arguments'] + '\\n```<｜tool▁call▁end｜>' }}
        {%- endfor %}
        {{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
    {%- endif %}
    {%- if message['role'] == 'assistant' and message['content'] is not none %}
        {%- if ns.calling %}{{- '<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}{%- set ns.calling = false %}
        {%- else %}{{- '<｜Assistant｜>' + message['content'].split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}{%- endif %}
    {%- endif %}
    {%- if message['role'] == 'tool' %}{{- '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and not ns.calling %}{{- '<｜Assistant｜>' }}{%- endif %}
"""
"""As V3 and R1 tell a message of calls from one of text: by content that is null. Arguments are text."""

DEEPSEEK_V3_1 = """{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none %}
        {%- for call in message['tool_calls'] %}
            {%- if loop.first and message['content'] is none %}{{- '<｜Assistant｜>' }}{%- elif loop.first %}{{- '<｜Assistant｜>' + message['content'] }}{%- endif %}
            {{- '<｜tool▁call▁begin｜>' + call['function']['name'] + '<｜tool▁sep｜>' + call['function']['arguments'] + '<｜tool▁call▁end｜>' }}
        {%- endfor %}
    {%- elif message['role'] == 'assistant' %}{{- '<｜Assistant｜>' + message['content'] }}
    {%- else %}{{- '<｜' + message['role'] + '｜>' + message['content'] }}
    {%- endif %}
{%- endfor %}
"""
"""By calls that are defined; content is added if it is not null."""

MINISTRAL_3 = """{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'assistant' %}
        {%- if (message['content'] is none or message['content'] == '' or message['content'] | length == 0) and (message['tool_calls'] is not defined or message['tool_calls'] is none or message['tool_calls'] | length == 0) %}{{- raise_exception('an assistant has content or calls tools') }}{%- endif %}
        {%- if message['content'] is string %}{{- message['content'] }}{%- elif message['content'] | length > 0 %}{%- for part in message['content'] %}{{- part['text'] }}{%- endfor %}{%- endif %}
        {%- for call in message.get('tool_calls') or [] %}
            {%- set arguments = call['function']['arguments'] %}
            {{- '[TOOL_CALLS]' + call['function']['name'] + '[ARGS]' + (arguments if arguments is string else arguments | tojson | safe) }}
        {%- endfor %}
        {{- eos_token }}
    {%- else %}{{- '[' + message['role'] | upper + ']' + message['content'] }}
    {%- endif %}
{%- endfor %}
"""
"""Asks whether content is null, and yet fails if it is."""

GRANITE = """{%- set roles = {'document': 'document {"document_id": "%s"}'} %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system = "Knowledge Cutoff Date: April 2024.\\nToday's Date: " + strftime_now('%B %d, %Y') + "." %}{%- set loop_messages = messages %}
    {%- if tools %}{%- set system = system + '\\nUse the tools.' %}{%- elif documents %}{%- set system = system + '\\nUse the documents.' %}{%- endif %}
    {%- if 'citations' in (controls or {}) and (controls | items | list | length) %}{%- set system = system + '\\nCite.' %}{%- endif %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system + '<|end_of_text|>\\n' }}
{%- if tools %}{{- '<|start_of_role|>tools<|end_of_role|>' }}{{- tools | tojson(indent=4) }}{{- '<|end_of_text|>\\n' }}{%- endif %}
{%- for document in documents or [] %}
    {{- '<|start_of_role|>' + roles.get('document') | format(document['doc_id'] | default(loop.index)) + '<|end_of_role|>\\n' }}{{- document['text'] }}{{- '<|end_of_text|>\\n' }}
{%- endfor %}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] | string + '<|end_of_text|>\\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant' }}{%- if controls %}{{- ' ' + controls | tojson() }}{%- endif %}{{- '<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}"""
"""A date, tools as indented JSON, documents, controls among the template's arguments."""

SMOLLM_3 = """{%- set enable_thinking = true if enable_thinking is not defined else enable_thinking %}
{%- set mode = '/think' if enable_thinking else '/no_think' %}
{%- set custom = '' %}
{%- if messages[0].role == 'system' %}
    {%- set custom = messages[0].content.replace('/no_think', '').replace('/think', '').rstrip() %}
    {%- if '/no_think' in messages[0].content %}{%- set mode = '/no_think' %}{%- elif '/think' in messages[0].content %}{%- set mode = '/think' %}{%- endif %}
{%- endif %}
{{- '<|im_start|>system\\n## Metadata\\n\\nToday Date: ' + strftime_now('%d %B %Y') + '\\nReasoning Mode: ' + mode + '\\n\\n## Custom Instructions\\n\\n' + (custom or 'Be helpful.') + '\\n\\n' }}
{%- if xml_tools or tools %}
    {{- '### Tools\\n<tools>\\n' }}
    {%- for tool in xml_tools or tools %}{{- tool | string + '\\n' }}{%- endfor %}
    {{- '</tools>\\n\\n' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' %}{{ '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- generation %}
        {%- if mode == '/think' %}{{ '<|im_start|>assistant\\n' + content.lstrip('\\n') + '<|im_end|>\\n' }}{%- else %}{{ '<|im_start|>assistant\\n' + '<think>\\n\\n</think>\\n' + content.lstrip('\\n') + '<|im_end|>\\n' }}{%- endif %}
        {%- endgeneration %}
    {%- elif message.role == 'tool' %}{{ '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' if mode == '/think' else '<|im_start|>assistant\\n<think>\\n\\n</think>\\n' }}{%- endif %}
"""
"""Two switches of thinking: an argument, and a word in the system's message. Tools as Python prints them."""

MISTRAL = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{{- '[SYSTEM_PROMPT]' + messages[0]['content'] + '[/SYSTEM_PROMPT]' }}{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in rest | rejectattr('tool_calls', 'defined') | rejectattr('role', 'equalto', 'tool') %}
    {%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}{{- raise_exception('After the optional system message, roles must alternate user/assistant!') }}{%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{%- set users = rest | selectattr('role', 'equalto', 'user') | list %}
{%- for message in rest %}
    {%- if message['role'] == 'user' %}
        {%- if tools is not none and tools and message == users[-1] %}
            {{- '[AVAILABLE_TOOLS] [' }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, value in tool.function.items() if key != 'return' %}
                    {%- if value is string %}{{- '"' + key + '": "' + value + '"' }}{%- else %}{{- '"' + key + '": ' + value | tojson }}{%- endif %}
                    {{- ', ' if not loop.last else '}}' }}
                {%- endfor %}
                {{- ', ' if not loop.last else ']' }}
            {%- endfor %}
            {{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {%- if message['content'] is string %}{{- '[INST] ' + message['content'] + ' [/INST]' }}
        {%- else %}{{- '[INST] ' + message['content'] | map(attribute='text') | join('') + ' [/INST]' }}{%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if call.id is not defined or call.id | length != 9 %}{{- raise_exception('Tool call IDs must be 9 characters long!') }}{%- endif %}
            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + (', ' if not loop.last else ']' + eos_token) }}
        {%- endfor %}
    {%- elif message['role'] == 'assistant' %}{{- ' ' + message['content'] | trim + eos_token }}
    {%- elif message['role'] == 'tool' %}{{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception('Only user, system, assistant and tool roles are supported!') }}
    {%- endif %}
{%- endfor %}
"""
"""Strict alternation around calls of tools, filters on attributes, slices of text."""
