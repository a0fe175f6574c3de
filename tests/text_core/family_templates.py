# ruff: noqa: E501  the templates are given as checkpoints have them
"""Chat templates of families, written for these tests after what their publishers document of the formats."""

GEMMA = """{{ bos_token }}
{%- if messages[0].role == 'system' -%}
    {%- set preface = messages[0].content + '\\n\\n' -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set preface = '' -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for turn in turns -%}
    {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('user and assistant must take turns, but ' ~ turn.role ~ ' is number ' ~ loop.index) }}
    {%- endif -%}
    {{ '<start_of_turn>' ~ ('model' if turn.role == 'assistant' else turn.role) ~ '\\n' ~ (preface if loop.first else '') }}
    {%- if turn.content is string -%}
        {{ turn.content | trim }}
    {%- elif turn.content is iterable -%}
        {%- for part in turn.content -%}
            {{ '<start_of_image>' if part.type == 'image' else part.text | trim }}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception('no content') }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""
"""The system's message goes into the first turn of the user; turns must alternate."""

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

PHI_4 = """{% for message in messages %}{% if message['role'] in ('system', 'user', 'assistant') %}{{ '<|im_start|>' ~ message.role ~ '<|im_sep|>' ~ message.content ~ '<|im_end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"""

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

OLMO = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + '\\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '\\n' }}{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\\n' + message['content'] + eos_token + '\\n' }}{% else %}{{ '<|assistant|>\\n' + message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}"""
