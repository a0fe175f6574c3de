"""The names of modules of transformers' model, as adapters have them, in the model's checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from engine_core.lora.targets import LoRATargets
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.model_loader.multimodal import is_of_text, text_name
from engine_core.models.encoder_model import EncoderModel
from engine_core.models.language_model import LanguageModel
from engine_core.models.layered_model import LayeredModel

_LITERAL = re.compile(r"(?:[\w.]|\\\.)+")
"""A pattern that stands for itself."""


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """Finds a module's name in the model's checkpoint."""

    model: type[LanguageModel]
    of_multimodal: bool
    """Whether the model is the text model of another one, whose modules adapters name."""
    renamed: tuple[tuple[str, str], ...]
    """Parts of weights' names: a checkpoint's, and that in transformers' model."""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> ModuleNames:
        """Takes seconds and memory once, as transformers' table of names loads the compiler of torch."""
        model = checkpoint.choice.model
        renamed = tuple(_renamed_modules(str(getattr(model, "model_type", ""))))
        return cls(model, checkpoint.text_of is not None, renamed)

    def __call__(self, module: str) -> str | None:
        """None: a module of another part, such as a tower."""
        weight = f"{module}.weight"
        if self.of_multimodal and not is_of_text(weight):
            return None
        # of a text model by itself, too: the adapter may be of the model around it
        name = self.model.renamed(text_name(weight).removesuffix(".weight"))
        for ours, theirs in self.renamed:
            name = f"{name}.weight".replace(theirs, ours).removesuffix(".weight")
        return name


def named_targets(model: LanguageModel, targets: LoRATargets, checkpoint: Checkpoint) -> LoRATargets:
    """``targets`` of the checkpoint's ``model``, which find modules by the names that adapters have for them."""
    prefix = model.prefix if isinstance(model, LayeredModel) else "model"
    unused = model.unused if isinstance(model, EncoderModel) else ()
    if checkpoint.pooler is not None:
        unused = (*unused, "lm_head")
    unused = tuple(each for each in unused if not any(name.startswith(each) for name in model.tensors()))
    return replace(targets, rename=ModuleNames.of(checkpoint), prefix=prefix, unused=unused)


def _renamed_modules(model_type: str) -> Iterator[tuple[str, str]]:
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    from transformers.core_model_loading import WeightRenaming

    for each in get_checkpoint_conversion_mapping(model_type) or []:  # type: ignore[no-untyped-call]
        if type(each) is not WeightRenaming:
            continue
        for ours, theirs in zip(each.source_patterns, each.target_patterns, strict=False):
            if _LITERAL.fullmatch(ours) and _LITERAL.fullmatch(theirs) and theirs.endswith((".", ".weight")):
                yield ours.replace("\\", ""), theirs.replace("\\", "")
