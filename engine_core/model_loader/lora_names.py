"""The names of modules of transformers' model, as adapters have them, in the model's checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine_core.lora.targets import LoRATargets
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.model_loader.multimodal import is_of_text, text_name
from engine_core.models.encoder_model import EncoderModel
from engine_core.models.language_model import LanguageModel
from engine_core.models.layered_model import LayeredModel

_ROUTER = ("block_sparse_moe.router.layer.weight", "block_sparse_moe.router.weight")
_EXPERTS = (".block_sparse_moe.", ".mlp.")
RENAMED: dict[str, tuple[tuple[str, str], ...]] = {
    "granitemoe": (_ROUTER,),
    "granitemoehybrid": (_ROUTER,),
    "granitemoeshared": (_ROUTER,),
    "hy_v3": (("mlp.router.gate.weight", "mlp.gate.weight"), ("mlp.shared_mlp.", "mlp.shared_experts.")),
    "lfm3": ((".self_attn.gate_proj.", ".self_attn.g_proj."),),
    "minimax_m2": (_EXPERTS,),
    "mixtral": (_EXPERTS,),
    "nemotron_h": (("backbone.", "model."),),
}
"""Parts of weights' names by model type: a checkpoint's, and that in transformers' model. Transformers' own table loads
the compiler of torch, which takes seconds of each start.
"""


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
        model = checkpoint.choice.model
        renamed = RENAMED.get(str(getattr(model, "model_type", "")), ())
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
    unused = tuple(each for each in unused if not any(name.startswith(each) for name in model.tensors()))
    return replace(targets, rename=ModuleNames.of(checkpoint), prefix=prefix, unused=unused)
