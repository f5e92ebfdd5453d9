"Chat templates in the shape of every model family, and episodes with hostile text over each of them."

import pytest
from exactness import exactness
from templates import FAMILIES, tokenizer_of

from mcp_grpo.rollout import chat as chat_module
from mcp_grpo.rollout.chat import TODAY, Chat
from mcp_grpo.rollout.turns import call_form

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "it's a look",
        "parameters": {
            "type": "object",
            "properties": {"what": {"type": "string", "description": 'what "to" see'}, "n": {"type": "integer"}},
            "required": ["what"],
        },
    },
}
MESSAGES = [dict(role="system", content="Use the tools."), dict(role="user", content="What is it?")]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_recognised(name):
    family, chat = FAMILIES[name], Chat(tokenizer_of(name))
    assert (call_form(chat.template.source), chat.template.takes_tools, bool(chat.template.rewrites())) == (
        family.form,
        family.takes_tools,
        family.rewrites,
    )
    assert chat.end_id in chat.tokenizer.encode("".join(family.special), add_special_tokens=False)


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.takes_tools])
def test_the_first_prompt_is_the_templates_own(name):
    tokenizer = tokenizer_of(name)
    text = tokenizer.apply_chat_template(
        MESSAGES, tools=[TOOL], tokenize=False, add_generation_prompt=True, strftime_now=TODAY.strftime
    )
    assert Chat(tokenizer).prompt_ids(MESSAGES, [TOOL]) == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    "name", [name for name in FAMILIES if name not in ("llama2", "gemma2", "gemma3", "mistral-nemo", "hermes")]
)
def test_later_turns_are_the_templates_own(name):
    tokenizer, results = tokenizer_of(name), ['it is "red"', "so"]
    chat = Chat(tokenizer)
    asked = [*MESSAGES, dict(role="assistant", content="a call")]
    ids = chat.observation_ids([dict(role="tool", content=text) for text in results])
    tools = [
        dict(role="tool", name="tool", content=text, tool_call_id=f"call{i:05}") for i, text in enumerate(results, 2)
    ]
    text = tokenizer.apply_chat_template(
        [*asked, *tools], tokenize=False, add_generation_prompt=True, strftime_now=TODAY.strftime
    )
    assert text.replace(" ", "").endswith(tokenizer.decode(ids, skip_special_tokens=False).replace(" ", ""))


def test_trajectories_hold_what_was_sampled_and_no_text_becomes_a_marker():
    wrong, played = exactness(280)
    assert not wrong
    assert all(counts["turns"] > counts["episodes"] and counts["answered"] for counts in played.values()), played


def test_the_check_finds_text_that_was_encoded_with_markers(monkeypatch):
    monkeypatch.setattr(chat_module, "_plain_twin", lambda tokenizer: tokenizer.backend_tokenizer)
    monkeypatch.setattr(
        chat_module, "_plain_ids", lambda plain, text, added: plain.encode(text, add_special_tokens=False).ids
    )
    wrong, _ = exactness(20, families=("qwen3", "gemma3"))
    assert {"qwen3: markers in the prompt", "qwen3: markers in a result", "gemma3: markers in the prompt"} <= set(wrong)
