"""The models that are compared: small ones of torchvision, timm and transformers, with random weights."""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SEED = 0


@dataclass(frozen=True)
class Case:
    """A model with inputs.

    Args:
        family: the row of the table that it counts in.
        name: its name.
        make: makes the model.
        inputs: what `compare` is given.
    """

    family: str
    name: str
    make: Callable[[], nn.Module]
    inputs: Any

    def model(self) -> nn.Module:
        """Make the model in evaluation mode. Norms get statistics, weights and biases that are not 0 and 1."""
        torch.manual_seed(SEED)
        net = self.make().eval()
        with torch.no_grad():
            for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
                if name.endswith(("bias", "running_mean")):
                    tensor.add_(torch.randn_like(tensor) * 0.1)
                elif name.endswith("running_var") or (name.endswith("weight") and tensor.dim() == 1):
                    tensor.mul_(torch.rand_like(tensor) + 0.5)
        return net


TORCHVISION = {
    # name: pixels of a side
    "alexnet": 64, "convnext_tiny": 64, "densenet121": 64, "efficientnet_b0": 64,
    "googlenet": 64, "mnasnet0_5": 64, "mobilenet_v2": 64,
    "mobilenet_v3_small": 64, "regnet_x_400mf": 64, "regnet_y_400mf": 64, "resnet18": 64, "resnet50": 64,
    "shufflenet_v2_x0_5": 64, "squeezenet1_1": 64, "swin_t": 64, "swin_v2_t": 64,
    "vgg11_bn": 64, "vit_b_32": 224,
}  # fmt: skip

TIMM = {
    "convnext_atto": 64, "edgenext_xx_small": 64, "fastvit_t8": 64, "ghostnet_050": 64, "levit_128s": 224,
    "mixer_s32_224": 224, "mobilenetv3_small_050": 64, "mobilevit_xxs": 64, "poolformer_s12": 64, "resnet10t": 64,
    "resmlp_12_224": 224, "vit_tiny_patch16_224": 224, "xcit_nano_12_p16_224": 224, "efficientvit_b0": 64,
}  # fmt: skip

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
WORDS = SMALL | {"vocab_size": 60}
GROUPED = WORDS | {"num_key_value_heads": 2}
PATCHES = SMALL | {"image_size": 32, "patch_size": 8}

TRANSFORMERS: dict[str, tuple[str, dict[str, Any], str]] = {
    # name: class, its config, the kind of inputs
    "albert": ("AlbertForMaskedLM", WORDS | {"embedding_size": 16}, "words"),
    "bart": ("BartForConditionalGeneration", {"vocab_size": 60, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64}, "both"),
    "bert": ("BertForMaskedLM", WORDS, "words"),
    "bloom": ("BloomForCausalLM", {"vocab_size": 60, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "words"),
    "clip": ("CLIPModel", {"text_config": WORDS | {"max_position_embeddings": 32, "projection_dim": 16}, "vision_config": PATCHES | {"projection_dim": 16}, "projection_dim": 16}, "words and images"),
    "distilbert": ("DistilBertForMaskedLM", {"vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}, "words"),
    "electra": ("ElectraForMaskedLM", WORDS | {"embedding_size": 16}, "words"),
    "gemma": ("GemmaForCausalLM", GROUPED | {"head_dim": 8}, "words"),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4}, "words"),
    "gpt_neox": ("GPTNeoXForCausalLM", WORDS, "words"),
    "llama": ("LlamaForCausalLM", GROUPED, "words"),
    "mistral": ("MistralForCausalLM", GROUPED, "words"),
    "mixtral": ("MixtralForCausalLM", GROUPED | {"num_local_experts": 4}, "words"),
    "opt": ("OPTForCausalLM", {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64, "word_embed_proj_dim": 32}, "words"),
    "phi": ("PhiForCausalLM", WORDS, "words"),
    "qwen2": ("Qwen2ForCausalLM", GROUPED, "words"),
    "qwen3": ("Qwen3ForCausalLM", GROUPED | {"head_dim": 8}, "words"),
    "roberta": ("RobertaForMaskedLM", WORDS, "words"),
    "t5": ("T5ForConditionalGeneration", {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}, "both"),
    "vit": ("ViTForImageClassification", PATCHES, "images"),
    "dinov2": ("Dinov2Model", PATCHES, "images"),
    "mamba": ("MambaForCausalLM", {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, "words"),
}  # fmt: skip


def images(size: int, count: int = 2) -> Tensor:
    """Return random images."""
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(SEED))


def _words_and_images(kind: str) -> dict[str, Tensor]:
    words = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(SEED))
    words[:, -1] = 2  # the end of the text, which CLIP looks for
    given = {}
    if kind != "images":
        given["input_ids"] = words
    if kind == "both":
        given["decoder_input_ids"] = words.flip(1)
    if "images" in kind:
        given["pixel_values"] = images(32)
    return given


PIXELS = {"vit": 224, "maxvit_t": 224, "inception_v3": 96}
"""The fewest pixels of a side that a classifier of torchvision takes, where they are more than 64: by its family."""


def _of_torchvision(name: str) -> nn.Module:
    from torchvision.models import get_model

    return get_model(name, weights=None, **({"init_weights": False} if name in ("googlenet", "inception_v3") else {}))


def _of_timm(name: str) -> nn.Module:
    import timm

    return timm.create_model(name, pretrained=False)


def _of_transformers(name: str) -> nn.Module:
    import transformers

    kind, config, _ = TRANSFORMERS[name]
    made = getattr(transformers, kind)
    return made(made.config_class(use_cache=False, **copy.deepcopy(config)))


def classifiers() -> list[Case]:
    """Return a case for each classifier of torchvision, small or large."""
    from torchvision import models

    names = models.list_models(models)
    return [_classifier(name, PIXELS.get(name, PIXELS.get(name.split("_")[0], 64))) for name in names]


def _classifier(name: str, size: int) -> Case:
    kind = "transformers" if name.startswith(("vit", "swin", "maxvit")) else "convolutions"
    return Case(f"torchvision, {kind}", name, functools.partial(_of_torchvision, name), images(size))


def all_cases() -> list[Case]:
    """Return the cases of all families."""
    cases = [_classifier(name, size) for name, size in TORCHVISION.items()]
    cases += [Case("timm", name, functools.partial(_of_timm, name), images(size)) for name, size in TIMM.items()]
    cases += [
        Case("transformers", name, functools.partial(_of_transformers, name), _words_and_images(kind))
        for name, (_, _, kind) in TRANSFORMERS.items()
    ]
    return cases


def loss(output: Any) -> Tensor:
    """Return the mean square of the floating tensors that a model returns."""
    from hookboard.model.nested import tensors_in

    found = [tensor for _, tensor in tensors_in(output) if tensor.is_floating_point() and tensor.requires_grad]
    return torch.stack([tensor.float().square().mean() for tensor in found]).sum()
