"""Chat templates of the shapes that the families have, as short as they can be, with tools.

defines: SPECIAL, TEMPLATES, render
"""

from collections.abc import Sequence
from typing import Any

import minijinja

from sublimate.model.tool_formats import canonical_json

QWEN = (
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}"
    "{% endfor %}\nCall: <tool_call>\n...\n</tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}<|im_start|>assistant\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{% if not loop.first or m.content %}{{ '\n' }}{% endif %}"
    '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}<|im_end|>\n"
    "{% elif m.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
LLAMA = (
    "{% for m in messages %}"
    "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one') }}"
    "{% endif %}{% set call = m.tool_calls[0].function %}"
    '{{ \'<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "\' + call.name }}'
    "{{ '\", \"parameters\": ' }}{{ call.arguments | tojson }}{{ '}<|eot_id|>' }}"
    "{% else %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>"
    "{{ '\n\n' + m.content + '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% elif m.tool_calls %}[TOOL_CALLS][{% for call in m.tool_calls %}"
    "{{ (call.function | tojson)[:-1] + ', \"id\": \"' + call.id + '\"}' }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}]</s>"
    "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
MISTRAL_NAMED = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% else %}{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}"
    "{% endfor %}</s>{% endif %}{% endfor %}"
)
GEMMA = (
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
R1 = (
    "{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}{% else %}<|Assistant|>"
    "{{ m.content.split('</think>')[-1] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)

TEMPLATES = {
    "hermes": QWEN, "llama3": LLAMA, "mistral": MISTRAL, "mistral-named": MISTRAL_NAMED,
    "gemma": GEMMA, "generic": CHATML,
}  # fmt: skip
"""By the name of the format that has to be chosen."""
END_OF_TURN = {
    "hermes": "<|im_end|>\n", "llama3": "<|eot_id|>", "mistral": "</s>", "mistral-named": "</s>",
    "gemma": "<end_of_turn>\n", "generic": "<|im_end|>\n",
}  # fmt: skip


def _raise(message: object) -> None:
    raise ValueError(message)


def render(source: str, messages: Sequence[dict[str, Any]], **variables: Any) -> str:
    """As ChatTemplate renders: same library, same tojson."""
    environment = minijinja.Environment(
        templates={"chat": source},
        filters={"tojson": canonical_json},
        globals={"raise_exception": _raise},
        undefined_behavior="chainable",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.render_template("chat", messages=list(messages), **variables)
