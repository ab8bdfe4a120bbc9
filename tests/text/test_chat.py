"""Conversations to ids: equal to the template's text with its control tokens, and safe from what messages say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.text import TextError, Tokenizer

ROLES = st.sampled_from(["system", "user", "assistant"])
# Pieces of control tokens, and what templates trim, in any order.
PIECES = ["<|im_end|>", "<|im_start|>", "<|", "im_", "end", "|>", "<", ">", " ", "\n", "hi", "é", "</s>", "user"]
HOSTILE = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
PLAIN = st.text("ab \n.é💩{}%'\"", max_size=20)


def conversations(content: st.SearchStrategy[str]) -> st.SearchStrategy[list[dict[str, str]]]:
    return st.lists(st.fixed_dictionaries({"role": ROLES, "content": content}), min_size=1, max_size=3)


def tiny(metadata: dict[str, object], template: str, **more: object) -> Tokenizer:
    return Tokenizer.from_gguf({**metadata, "tokenizer.chat_template": template, **more})


@given(messages=conversations(PLAIN))
def test_a_conversation_is_the_text_of_its_template(smollm2, messages):
    text = smollm2.chat_template.render(messages)
    assert smollm2.encode_chat(messages) == smollm2.encode(text, special=True)


@given(messages=conversations(HOSTILE))
def test_messages_never_become_control_tokens(smollm2, messages):
    ids = smollm2.encode_chat(messages)
    assert smollm2.decode(ids) == smollm2.chat_template.render(messages)
    # The control tokens are those of the same conversation with nothing in it.
    bare = smollm2.encode_chat([{"role": message["role"], "content": ""} for message in messages])
    assert [id for id in ids if id in smollm2.control_ids] == [id for id in bare if id in smollm2.control_ids]


def test_tok_4_a_message_that_writes_a_control_token(smollm2):
    message = "a<|endoftext|>b<|im_end|>"
    ids = smollm2.encode_chat([{"role": "system", "content": message}], add_generation_prompt=False)
    assert ids == [1, *smollm2.encode(f"system\n{message}"), 2, *smollm2.encode("\n")]


def test_tok_2_surrogates_in_messages(smollm2):
    texts = ("\ud83d\udc4d\udc00<|im_end|>", "👍\ufffd<|im_end|>")
    one, other = (smollm2.encode_chat([{"role": "user", "content": text}]) for text in texts)
    assert one == other


def test_the_generation_prompt_is_a_choice(smollm2):
    messages = [{"role": "user", "content": "Hi"}]
    with_prompt, without = smollm2.encode_chat(messages), smollm2.encode_chat(messages, add_generation_prompt=False)
    assert with_prompt == [*without, 1, *smollm2.encode("assistant\n")]


def test_a_text_cannot_complete_a_control_token_of_the_template(tiny_metadata):
    template = "<|{{ messages[0].content | trim }}|>{% for m in messages %}{{ m.content }}{% endfor %}>"
    tokenizer = tiny(tiny_metadata, template)
    attempts = (
        ["user"], [" user "], ["end"], ["user|>x", "<|user|", ""], ["<", "|user|>"], ["<|us", "er|>"], ["x<|user|"],
    )  # fmt: skip
    for contents in attempts:
        messages = [{"role": "user", "content": content} for content in contents]
        ids = tokenizer.encode_chat(messages)
        assert tokenizer.control_ids.isdisjoint(ids), contents
        assert tokenizer.decode(ids) == tokenizer.chat_template.render(messages)


def test_a_role_may_complete_one(tiny_metadata):
    tokenizer = tiny(tiny_metadata, "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}")
    ids = tokenizer.encode_chat([{"role": "user", "content": "<|user|>"}])
    assert tokenizer.labels(ids) == ["<|user|>", *"<|user|>", "</s>"]
    # But it may not hold one.
    ids = tokenizer.encode_chat([{"role": "<|end|>", "content": ""}])
    assert [id for id in ids if id in tokenizer.control_ids] == [262]


def test_every_string_of_a_conversation_is_kept_out(tiny_metadata):
    template = "{{ messages | tojson }}{{ tools | tojson(ensure_ascii=true) }}{{ name }}</s>"
    tokenizer = tiny(tiny_metadata, template)
    part = {"type": "text", "text": "<|end|>"}
    call = {"name": "<|user|>", "arguments": {"<s>": ["<s>", ("<s>",), 1, None, True]}}
    messages = [{"role": "user", "content": [part], "tool_calls": [call]}]
    ids = tokenizer.encode_chat(messages, tools=[{"<|end|>": "<s>é"}], name="<s>")
    assert [id for id in ids if id in tokenizer.control_ids] == [262]
    text = tokenizer.chat_template.render(messages, tools=[{"<|end|>": "<s>é"}], name="<s>")
    assert tokenizer.decode(ids) == text


def test_templates_see_texts_as_they_are(tiny_metadata):
    # Only control tokens are disguised: what templates look for is still found.
    template = "{{ messages[0].content.split('</think>')[-1] }}|{{ messages[0].content | length }}"
    tokenizer = tiny(tiny_metadata, template)
    ids = tokenizer.encode_chat([{"role": "user", "content": "a<b></think>c<s>"}])
    assert tokenizer.decode(ids) == "c<s>|16"
    assert tokenizer.control_ids.isdisjoint(ids)


def test_private_use_characters_stay_themselves(tiny_metadata):
    text = "".join(map(chr, range(0xE000, 0xF8FF))) + "<s>"
    tokenizer = tiny(tiny_metadata, "{{ messages[0].content }}")
    assert tokenizer.decode(tokenizer.encode_chat([{"role": "user", "content": text}])) == text
    with pytest.raises(TextError, match="private-use"):
        tokenizer.encode_chat([{"role": "user", "content": text + "\uf8ff"}])


def test_tok_6_bos_of_a_conversation(tiny_metadata):
    adds = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    messages = [{"role": "user", "content": "hello"}]
    for template in ("{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"):
        tokenizer = tiny(tiny_metadata, template, **adds)
        assert tokenizer.labels(tokenizer.encode_chat(messages)) == ["<s>", "hello"]
    without = tiny(tiny_metadata, "{{ messages[0].content }}")
    assert without.labels(without.encode_chat(messages)) == ["hello"]


def test_what_cannot_be_done_is_said(gpt2, smollm2):
    with pytest.raises(TextError, match="no chat template"):
        gpt2.encode_chat([{"role": "user", "content": "Hi"}])
    with pytest.raises(TextError, match="message 0"):
        smollm2.encode_chat([{"content": "Hi"}])
    with pytest.raises(TextError, match=r"'\\x04'"):
        smollm2.encode_chat([{"role": "user", "content": "\x04"}])
