"""Chat templates: what they write against Hugging Face, what they may not do, and what goes wrong in them."""

import copy
import pickle
from datetime import datetime

import pytest
from tokenizers import Tokenizer as Library
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from pellucid.text import ChatTemplate, TextError
from pellucid.text.template import check_messages

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hello\n<b>& {{ x }}</b> é\n"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Bye"},
]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "é": "<a> & 'b'"}}}]

TEMPLATES = {
    "chatml": """{% for message in messages %}
    {% if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
    {% endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "tools": """{{ bos_token }}{% if tools is not none %}{{ tools | tojson }}
{{ tools | tojson(indent=2) }}{% endif %}{% for m in messages %}{{ m.content ~ eos_token }}{% endfor %}""",
    "no tools": "{{ tools is none }} {{ documents is none }} {{ nothing is defined }}",
    "blocks": """{%- set ns = namespace(users=0, text='') %}
  {% for m in messages %}
    {% if m.role == 'user' %}{% set ns.users = ns.users + 1 %}{% else %}{% continue %}{% endif %}
{{ loop.index0 }}/{{ loop.length }} {{ loop.previtem.role }} {{ loop.last }}
  {% endfor %}
{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}
{{ ns.users }} {{ messages | length }} {{ messages[-1]['content'] }} {{ messages[1:] | map(attribute='role') | list }}
{{ '%s=%d' % ('a', 3) }} {{ 'ab' * 2 }} {{ 7 // 2 }} {{ 2 ** 5 }} {{ 'x' in 'xyz' }}
{{ messages[1].content.split('\\n')[0] }}""",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}",
    "macros": """{% macro turn(m, mark='>') %}{{ mark }}{{ m.role | upper }}: {{ m.content }}
{% endmacro %}{% for m in messages %}{{ turn(m) }}{% endfor %}
{% for key, value in messages[0].items() %}{{ key }}{{ value }}{% endfor %}""",
}


@pytest.fixture(scope="module")
def theirs() -> PreTrainedTokenizerFast:
    library = Library(WordLevel({"<s>": 0, "</s>": 1}, "<s>"))
    return PreTrainedTokenizerFast(tokenizer_object=library, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_write_what_they_write_at_hugging_face(theirs, name, prompt, tools):
    ours = ChatTemplate(TEMPLATES[name], {"bos_token": "<s>", "eos_token": "</s>"})
    expected = theirs.apply_chat_template(
        CONVERSATION, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=prompt, tools=tools
    )
    assert ours.render(CONVERSATION, add_generation_prompt=prompt, tools=tools) == expected


def test_further_names_reach_the_template():
    template = ChatTemplate("{% if enable_thinking %}<think>{% endif %}{{ messages[0].content }}")
    assert template.render([{"role": "user", "content": "x"}], enable_thinking=True) == "<think>x"
    assert template.render([{"role": "user", "content": "x"}]) == "x"


def test_the_date_of_today():
    before = datetime.now()
    written = ChatTemplate("{{ strftime_now('%Y-%m-%d %H') }}").render([])
    assert written in {now.strftime("%Y-%m-%d %H") for now in (before, datetime.now())}


def test_surrogates_are_joined_or_replaced():
    messages = [{"role": "user", "content": "\ud83d\udc4d\udc00"}]
    assert ChatTemplate("{{ messages[0].content }}").render(messages) == "👍\ufffd"


def test_copies_and_pickles_write_the_same():
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"})
    messages = [{"role": "user", "content": "x"}]
    assert template.render(messages) == "<s>x"
    for again in (copy.deepcopy(template), pickle.loads(pickle.dumps(template))):
        assert again == template
        assert again.render(messages) == "<s>x"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", r"Expected an expression.*\(line 1\)"),
        ("\n{{ 'a }}", r"\(line 2\)"),
        ("{% for %}{% endfor %}", "line 1"),
        ("{{ raise_exception('Roles must\nalternate') }}", "^the chat template failed: Roles must alternate$"),
        ("{{ messages.nothing.at_all }}", "has no attribute 'nothing'"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{% for x in 5 %}{% endfor %}", "TypeError"),
        ("{% include 'other' %}", "TypeError: no loader"),
        ("{% extends '/etc/passwd' %}", "TypeError: no loader"),
    ],
)
def test_faults_of_a_template_are_one_line(source, message):
    with pytest.raises(TextError, match=message) as caught:
        ChatTemplate(source).render(CONVERSATION)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ lipsum.__globals__['os'] }}",
        "{{ ''.format_map({}) }}{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
        "{{ messages | attr('__class__') | attr('__mro__') }}",
    ],
)
def test_a_template_stays_in_its_sandbox(source):
    try:
        written = ChatTemplate(source).render(CONVERSATION)
    except TextError:
        return
    assert written.strip() == ""  # what is out of reach reads as undefined


@pytest.mark.parametrize(
    "source",
    ["{{ messages.append(1) }}", "{{ messages.clear() }}", "{% do 1 %}", "{{ messages[0].update(role='x') }}"],
)
def test_a_template_changes_nothing(source):
    messages = copy.deepcopy(CONVERSATION)
    with pytest.raises(TextError):
        ChatTemplate(source).render(messages)
    assert messages == CONVERSATION


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set s = 'abcdefghij' * 9 %}" + "{% for c in s %}" * 9 + "{% endfor %}" * 9,
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(50) }}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ [1] * 10 ** 9 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{{ " + "(" * 10_000 + "1" + ")" * 10_000 + " }}",
    ],
)
def test_a_template_without_end_is_stopped(source, monkeypatch):
    monkeypatch.setattr("pellucid.text.sandbox.MOST_STEPS", 20_000)
    with pytest.raises(TextError, match="the chat template failed") as caught:
        ChatTemplate(source).render(CONVERSATION)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("messages", [[{"content": "x"}], [{"role": 3, "content": "x"}], ["x"], [None], [[]]], ids=str)
def test_messages_of_another_form_are_refused(messages):
    with pytest.raises(TextError, match=r"message 0: expected a mapping"):
        check_messages(messages)


def test_messages_that_are_no_list_are_refused():
    with pytest.raises(TextError, match="expected a list of messages, got dict"):
        check_messages({"role": "user", "content": "x"})


def test_render_checks_its_messages():
    with pytest.raises(TextError, match="message 1"):
        ChatTemplate("x").render([{"role": "user"}, {"content": "x"}])
