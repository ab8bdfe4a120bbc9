"""What `load` returns: a transformer, its tokenizer, and the verbs, each of which is one line into its room."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..generation import Beams, Found, Generation, Piece, Sampling, Watch, embed, fill, generate, search, stream
from ..generation.choose import row_seeds
from ..generation.options import Settings, with_ids, with_options
from ..generation.prompts import Prompt, is_one
from ..inside.baking import baked
from ..inside.edit_files import FILE, edits_as_bytes
from ..inside.edits import Edit
from ..inside.grading import report_card
from ..inside.neuron_scan import scan as scan_neurons
from ..inside.neurons import Neurons, Scan
from ..inside.pairs import Pair, Pairs, aligned
from ..inside.plan import plan
from ..inside.reading import chain
from ..inside.recorder import Recorder
from ..inside.report_card import ReportCard
from ..inside.rerun import edited, made_with
from ..inside.site_table import site_table
from ..inside.trace import Trace, attached, recorded, trace
from ..inside.trace_opening import load_trace
from ..model.budget import Budget, budget
from ..model.config import Config
from ..model.flow import Looks
from ..model.transformer import Transformer
from ..text import Tokenizer
from ..training.evaluation import Evaluation, evaluate
from ..views.table import Table
from ..weights.saving import save_checkpoint
from .prompting import Prompting


class Model:
    """A transformer with its tokenizer. `transformer` is an ordinary torch module; nothing is registered anywhere."""

    def __init__(
        self,
        transformer: Transformer,
        tokenizer: Tokenizer | None = None,
        name: str = "model",
        eos_ids: tuple[int, ...] = (),
        start_id: int | None = None,
        forbidden_ids: tuple[int, ...] = (),
    ):
        self.transformer = transformer
        self.tokenizer = tokenizer
        self.name = name
        self.eos_ids = eos_ids
        self.start_id = start_id  # what an encoder-decoder's answer begins with
        self.forbidden_ids = forbidden_ids  # what is never generated, as the checkpoint's own settings say
        self.edits: tuple[Edit, ...] = ()

    @property
    def config(self) -> Config:
        """The frozen record of the model's shape."""
        return self.transformer.config

    @property
    def blocks(self) -> nn.ModuleList:
        """The blocks; `model.blocks[3].attention.W_Q[h]` is one head's query matrix, a view."""
        return self.transformer.blocks

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.transformer.W_U.device

    @property
    def fills(self) -> bool:
        """Whether the model fills masks: it sees both ways, and has a head that makes logits."""
        return not self.config.causal and self.config.head is not None

    def sites(self, length: int = 1, batch: int = 1) -> Table:
        """Every value that can be read: name, the lessons' symbol, formula, shape and bytes for `length` tokens."""
        return site_table(self.transformer, self.name, length, batch)

    def budget(self) -> Budget:
        """Where the parameters are."""
        return budget(self.config)

    def edited(self, *edits: Edit) -> "Model":
        """This model with edits that hold in everything it does, by absolute position; the weights are shared.

        The model itself stays as it is. Raises SiteError or EditError for edits that make no sense for it.
        """
        plan(self.transformer, (*self.edits, *edits))
        model = copy(self)
        model.edits = (*self.edits, *edits)
        return model

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """Token ids of a text. Control tokens in it stay text unless `special`; `bos` None is the checkpoint's rule."""
        return self._words().encode(text, special=special, bos=bos)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, exactly."""
        return self._words().decode(list(ids))

    def trace(
        self,
        prompt: str | Sequence[Any] | Tensor,
        mask: Tensor | Sequence[Sequence[int]] | None = None,
        *,
        types: Tensor | Sequence[Sequence[int]] | None = None,
        source: str | Sequence[Any] | Tensor | None = None,
        grad: bool = False,
    ) -> Trace:
        """Run the model on a text, token ids, or a list of either, and keep the stream.

        Texts of different lengths are padded on the right and masked. Ids given as a tensor (B x T) or as rows may come
        with a `mask` of their shape: 1 a token, 0 padding, on either side. `types` are BERT's token types, of the same
        shape. An encoder-decoder reads `source`, one text for each prompt. With `grad` what is read stays attached for
        ordinary autograd, down to the weights; `trace.gradient` needs no such thing.
        """
        if self.transformer.encoder is not None:
            prompt = self._prompts.answers(prompt)
        ids, mask = self._prompts.batch(prompt, mask)
        types = types if types is None or isinstance(types, Tensor) else torch.tensor(types)
        make = attached if grad else trace
        if self.transformer.encoder is None or source is None:
            if source is not None:
                raise ValueError(f"{self.name} has no encoder: it takes no source text")
            return edited(make(self.transformer, ids, mask, self.tokenizer, types), self.edits)
        encoder = make(self.transformer.encoder, *self._prompts.batch(source), self.tokenizer)
        return edited(make(self.transformer, ids, mask, self.tokenizer, types, encoder), self.edits)

    @overload
    def generate(
        self, prompt: Prompt, sampling: Sampling | None = None, *, trace: bool = False, **options: Any
    ) -> Generation: ...
    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        sampling: Sampling | None = None,
        *,
        trace: bool = False,
        **options: Any,
    ) -> list[Generation]: ...
    def generate(
        self,
        prompt: Prompt | list[str] | list[list[int]],
        sampling: Sampling | None = None,
        *,
        trace: bool = False,
        **options: Any,
    ) -> Generation | list[Generation]:
        """Continue one prompt, or several at a time; each gives one record.

        The prompt of an encoder-decoder is the text that its encoder reads; what is generated is the answer. `options`
        are fields of `Sampling` (max_new_tokens=, temperature=, ...). With `trace` the record carries the trace of the
        whole sequence, prompt and continuation.
        """
        settings = self._sampling(sampling, options)
        one = is_one(prompt)
        prompts: list[Any] = [prompt] if one else list(prompt)
        if trace:
            seeds = row_seeds(settings, len(prompts))
            found = [
                self._traced(each, replace(settings, seed=seed)) for each, seed in zip(prompts, seeds, strict=True)
            ]
        else:
            starts, sources = self._prompts.asked(prompts)
            found = generate(self.transformer, self.tokenizer, starts, settings, Watch(self._looks()), sources)
        return found[0] if one else found

    def beams(self, prompt: Prompt, settings: Beams | None = None, **options: Any) -> list[Found]:
        """The most probable continuations that beam search finds, best first; `options` are fields of `Beams`."""
        if self.edits:
            raise ValueError("beam search runs models without edits: generate decodes edited ones")
        settings = with_options(Beams() if settings is None else settings, options)
        settings = self._with_own_ids(settings)
        starts, sources = self._prompts.asked([prompt])
        return search(self.transformer, self.tokenizer, starts, settings, sources)[0]

    def fill(self, text: str, k: int = 5) -> Table:
        """The k most probable tokens for each mask in a text, as a table; masks are written as in "[MASK]"."""
        found = [each for mask in fill(self.transformer, self._words(), text, k, self._looks()) for each in mask]
        rows = tuple((each.position, each.token, each.id, each.probability, each.text) for each in found)
        return Table("masked tokens", ("position", "token", "id", "probability", "text"), rows)

    def embed(self, texts: str | Sequence[Any], pooling: str = "mean", unit: bool = False) -> Float[Tensor, "N D"]:
        """One vector for each text: the final stream's "mean" over its tokens or the "first" token's; `unit` length.

        Of an encoder-decoder it is the encoder's stream.
        """
        rows = [self._prompts.ids(text) for text in ([texts] if is_one(texts) else texts)]
        reader = self.transformer.encoder or self.transformer
        return embed(reader, rows, pooling, unit, self._looks())

    def stream(self, prompt: Prompt, sampling: Sampling | None = None, **options: Any) -> Iterator[Piece]:
        """Continue a prompt, token by token."""
        (start,), source = self._prompts.asked([prompt])
        settings = self._sampling(sampling, options)
        watch = Watch(self._looks())
        return stream(self.transformer, self.tokenizer, start, settings, watch, source[0] if source else None)

    def heads(self, **options: Any) -> ReportCard:
        """What kind each head is, every score beside what chance would give; `options` as `report_card` has them."""
        self._check_unedited("the report card")
        return report_card(self.transformer, self.tokenizer, **options)

    def neurons(self, texts: Iterable[str | Sequence[int]], scan: Scan | None = None, **where: Any) -> Neurons:
        """What fires each neuron most, over a corpus of any size in one pass; `where`: folder=, progress=."""
        self._check_unedited("a scan of neurons")
        return scan_neurons(self.transformer, self._prompts.several(texts), scan, self.tokenizer, **where)

    def pairs(self, pairs: Sequence[Pair | tuple[str, str]]) -> Pairs:
        """Clean and corrupted texts, token below token. Raises ValueError that draws where they do not align."""
        return aligned(pairs, self._words())

    def traces(self, pairs: Pairs) -> tuple[Trace, Trace]:
        """The trace of all clean texts, and that of all corrupted ones, both under this model's edits."""
        clean, corrupted = pairs.traces(self.transformer)
        return edited(clean, self.edits), edited(corrupted, self.edits)

    def evaluate(self, text: str, length: int = 0, stride: int = 0) -> Evaluation:
        """Loss, perplexity and bits for each byte of a text, by sliding window (0: as the model's context allows)."""
        self._check_unedited("evaluation")
        return evaluate(self.transformer, self._words(), text, length=length, stride=stride)

    def load_trace(self, path: str | os.PathLike[str]) -> Trace:
        """A trace that `trace.save` wrote. Raises ValueError for a file that is none, or of another model's."""
        return load_trace(path, self.transformer, self.tokenizer)

    def baked(self) -> "Model":
        """A model whose weights say what this one's edits do. Raises EditError for edits that weights cannot say."""
        model = copy(self)
        model.transformer, model.edits = baked(self.transformer, self.edits), ()
        return model

    def save(self, folder: str | os.PathLike[str], layout: str | None = None) -> Path:
        """Save the model as a folder that `load` opens: weights, tokenizer, settings, and its edits beside them.

        `layout`: see `weights.saving.save_checkpoint`. Raises ValueError for what the layout has no place for.
        """
        beside = {} if self.tokenizer is None else self.tokenizer.to_files()
        beside |= {FILE: edits_as_bytes(self.edits)} if self.edits else {}
        ids = {"eos_token_id": list(self.eos_ids) or None, "decoder_start_token_id": self.start_id}
        ids |= {"suppress_tokens": list(self.forbidden_ids) or None}
        return save_checkpoint(folder, self.transformer, layout=layout, generation=ids, beside=beside)

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """A conversation as the model was taught to read it, up to where its answer begins."""
        return self._words().encode_chat(messages)

    def __repr__(self) -> str:
        shape = f"{self.config.n_layers} layers, width {self.config.d_model}, {self.budget().total:,} parameters"
        edits = f", {len(self.edits)} edits" if self.edits else ""
        return f"Model({self.name}: {shape}, {self.transformer.W_U.dtype}, {self.device}{edits})"

    @property
    def _prompts(self) -> Prompting:
        return Prompting(self.transformer, self.tokenizer, self.name, self.start_id)

    def _words(self) -> Tokenizer:
        return self._prompts.words

    def _sampling(self, sampling: Sampling | None, options: Mapping[str, Any]) -> Sampling:
        settings = with_options(Sampling() if sampling is None else sampling, options)
        return self._with_own_ids(settings)

    def _check_unedited(self, what: str) -> None:
        if self.edits:
            raise ValueError(f"{what} reads the weights as they are, without this model's edits: baked() puts them in")

    def _with_own_ids(self, settings: Settings) -> Settings:
        """The checkpoint's own end ids and forbidden ones beside the caller's."""
        return with_ids(settings, self.config.vocab_size, stop_ids=self.eos_ids, forbidden_ids=self.forbidden_ids)

    def _traced(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Continue one prompt while its stream is recorded, the last token's too."""
        recorder = Recorder(self.transformer)
        starts, sources = self._prompts.asked([prompt])
        watch = Watch(chain(self._looks(), recorder.looks), read_last=True)
        found = generate(self.transformer, self.tokenizer, starts, sampling, watch, sources)[0]
        ids = torch.tensor([[*found.prompt_ids, *found.ids]], device=self.device)
        whole = recorded(self.transformer, recorder, ids, self.tokenizer)
        if self.transformer.encoder is not None:
            encoder = trace(self.transformer.encoder, *self._prompts.batch(prompt), self.tokenizer)
            whole = replace(whole, source=encoder)
        return replace(found, trace=made_with(whole, self.edits))

    def _looks(self) -> Looks:
        """The edits as looks, for passes that may be continued token by token."""
        if any(edit.whole for edit in self.edits):
            raise ValueError("an edit that maps a whole site sees all positions at once: it works in a trace alone")
        return plan(self.transformer, self.edits).looks()
