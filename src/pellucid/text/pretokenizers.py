"""How text is cut into words before its bytes are merged: what each `tokenizer.ggml.pre` name of a GGUF file means.

A rule is a list of patterns. Each in turn cuts what the one before left, into its matches and what stands between them.
The rules are those of llama.cpp (src/llama-vocab.cpp), whose files carry the names; names whose rule it only
approximates are left out. https://github.com/ggml-org/llama.cpp
"""

from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from .errors import TextError, shown

DIGIT = r"\p{N}"
BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
ENDINGS = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"  # of English words: it's, we'll
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{BLANKS}"
QWEN2 = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{BLANKS}"
SEED = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{BLANKS}"
QWEN35 = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{BLANKS}"
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{BLANKS}"
)
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True)
class Rule:
    """The patterns of a rule; whether a word that is itself a token skips the merges; whether BOS is put first unless
    the file says otherwise."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False


RULES = {
    ("default",): Rule((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ("gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "mellum", "a.x-4.0", "exaone4", "trillion"): Rule((GPT2,)),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"): Rule((DIGIT, GPT2)),
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"): Rule((LLAMA3,), True, True),
    ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"): Rule((LLAMA3,)),
    ("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"): Rule((QWEN2,)),
    ("qwen35",): Rule((QWEN35,)),
    ("seed-coder",): Rule((SEED,)),
    ("falcon",): Rule((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    ("deepseek-coder",): Rule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGIT)),
    ("deepseek-v3", "hunyuan-dense"): Rule((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3)),
    ("bloom", "poro-chat", "gpt3-finnish"): Rule((BLOOM,)),
    ("viking",): Rule((BLOOM, DIGIT)),
}


def rule_named(pre: str) -> Rule:
    """The rule a GGUF file names. Raises TextError for a name that is not known, with the list of those that are."""
    for names, rule in RULES.items():
        if pre in names:
            return rule
    known = ", ".join(sorted(name for names in RULES for name in names))
    raise TextError(
        f"tokenizer.ggml.pre is {shown(pre)}, a rule for cutting text into words that is not known here, and "
        f"another rule would give wrong tokens. Known are: {known}"
    )


def pre_tokenizer(rule: Rule) -> PreTokenizer:
    """The rule as the tokenizers library runs it; words come out in the byte alphabet."""
    cuts = [Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])
