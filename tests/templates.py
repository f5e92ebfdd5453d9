"""Tokenizers and chat templates in the shape of the model families, and texts that try to leave their place.

The templates lie in data/templates. A tokenizer is made on the spot: a small byte-level or SentencePiece-like
vocabulary with the family's special tokens.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

FOLDER = Path(__file__).parent / "data/templates"
WORDS = (
    "the price of a share user assistant system tool name arguments parameters type function string description "
    "look where from value "
) * 3


@dataclass(frozen=True)
class Family:
    "A tokenizer's shape, and what is expected of its template."

    template: str  # file below data/templates
    # byte: byte-level BPE; prefix: SentencePiece with a space before every text; plain: SentencePiece without it
    kind: str
    special: tuple  # special tokens
    marks: tuple = ()  # added tokens without the special flag
    bos: str | None = None
    eos: str = "<|im_end|>"
    form: str = "hermes"  # of calls
    takes_tools: bool = True  # whether the template shows tools
    rewrites: bool = False  # whether it renders earlier turns otherwise than they were sampled
    ignore_merges: bool = False  # whole words are looked up in the vocabulary first, as in Llama 3


CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
LLAMA3 = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)
LLAMA4 = (
    "<|begin_of_text|>",
    "<|header_start|>",
    "<|header_end|>",
    "<|eom|>",
    "<|eot|>",
    "<|python_start|>",
    "<|python_end|>",
)
MISTRAL = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
)
NEMO = (*MISTRAL, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[ARGS]", "[TOOL_CONTENT]")
GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
DEEPSEEK = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
)
FAMILIES = {
    "qwen2.5": Family("qwen2.5", "byte", CHATML, QWEN_MARKS[:2]),
    "qwen3": Family("qwen3", "byte", CHATML, QWEN_MARKS, rewrites=True),
    "qwen3-coder": Family("qwen3-coder", "byte", CHATML, QWEN_MARKS, form="xml"),
    "llama3": Family(
        "llama3", "byte", LLAMA3, bos="<|begin_of_text|>", eos="<|eot_id|>", form="llama", ignore_merges=True
    ),
    "llama4": Family("llama4", "byte", LLAMA4, bos="<|begin_of_text|>", eos="<|eot|>", form="pythonic"),
    "llama2": Family("llama2", "prefix", ("<unk>", "<s>", "</s>"), bos="<s>", eos="</s>", takes_tools=False),
    "mistral": Family("mistral", "prefix", MISTRAL, bos="<s>", eos="</s>", form="mistral", rewrites=True),
    "mistral-nemo": Family("mistral-nemo", "byte", NEMO, bos="<s>", eos="</s>", form="mistral"),
    "gemma2": Family("gemma2", "plain", GEMMA, ("\n\n", "<h1>"), bos="<bos>", eos="<eos>", takes_tools=False),
    "gemma3": Family("gemma3", "plain", GEMMA, ("\n\n", "<h1>"), bos="<bos>", eos="<eos>", takes_tools=False),
    "hermes": Family(
        "hermes", "byte", ("<|begin_of_text|>", *CHATML[1:]), ("<tool_call>", "</tool_call>"), bos="<|begin_of_text|>"
    ),
    "smollm2": Family("smollm2", "byte", CHATML, takes_tools=False),
    "smollm3": Family("smollm3", "byte", CHATML, QWEN_MARKS, rewrites=False),
    "deepseek-r1": Family(
        "deepseek-r1",
        "byte",
        DEEPSEEK,
        ("<think>", "</think>"),
        bos=DEEPSEEK[0],
        eos=DEEPSEEK[1],
        takes_tools=False,
        rewrites=True,
    ),
}


def byte_level(ignore_merges: bool) -> Tokenizer:
    "Byte-level BPE, split as GPT-4 and Qwen split."
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    split = pre_tokenizers.Split(
        Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [WORDS],
        trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    return tokenizer


def sentence_piece(special: tuple, prefix: bool) -> Tokenizer:
    "BPE over characters that falls back to bytes; the special tokens are entries of its vocabulary, as in Llama 2."
    pieces = [*special, *(f"<0x{i:02X}>" for i in range(256)), "▁", *map(chr, range(33, 127))]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "a"), ("o", "r"), ("▁", "▁")]
    for a, b in merges:
        vocab.setdefault(a + b, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    tail = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *tail])
    return tokenizer


@lru_cache(None)
def tokenizer_of(
    name: str,  # in FAMILIES
) -> PreTrainedTokenizerFast:
    "A family's tokenizer with its chat template."
    family = FAMILIES[name]
    backend = (
        byte_level(family.ignore_merges)
        if family.kind == "byte"
        else sentence_piece(family.special, family.kind == "prefix")
    )
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in family.special])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in family.marks])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=family.bos, eos_token=family.eos, clean_up_tokenization_spaces=False
    )
    tokenizer.name_or_path = name
    tokenizer.chat_template = (FOLDER / f"{family.template}.jinja").read_text()
    tool_use = FOLDER / f"{family.template}-tool_use.jinja"
    if tool_use.exists():
        tokenizer.chat_template = {"default": tokenizer.chat_template, "tool_use": tool_use.read_text()}
    return tokenizer
