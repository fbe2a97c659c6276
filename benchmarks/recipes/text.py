"""Text: Hugging Face's models from scratch, adapters of peft, and torch's examples."""

import math
from functools import partial
from typing import Any

import torch
from benchmarks.recipes import data
from benchmarks.recipes.recipe import STEPS, Plain, Training, loader, recipe
from benchmarks.recipes.vision import EXAMPLES, warm_cosine
from torch import Tensor, nn, optim
from torch.nn import functional as F  # noqa: N812  # the usual name

COURSE = "huggingface.co/learn/llm-course/chapter7/6: AdamW 5e-4, decay 0.1, cosine with warm-up"
TRAINER = "huggingface/transformers examples/pytorch/{}: AdamW 5e-5, linear schedule"
LENGTH = 32

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def linear_to_zero(optimizer: optim.Optimizer) -> Any:
    return optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / STEPS))


# Causal language models


def causal(kind: str, **options: Any) -> None:
    def build() -> Training:
        net = causal_model(kind, **options)
        adamw = partial(optim.AdamW, lr=5e-4, weight_decay=0.1)
        module = Plain(net, next_character, adamw, partial(warm_cosine, warm=20))
        return Training(module, loader(data.windows(LENGTH)[0]), options={"gradient_clip_val": 1.0})

    recipe(f"transformers: {kind}", f"{COURSE}; {kind}ForCausalLM", "transformers")(build)


def causal_model(kind: str, **options: Any) -> Any:
    import transformers  # type: ignore[import-not-found]  # an optional package

    config = getattr(transformers, f"{kind}Config")(vocab_size=data.text()[1], **FIRST_AND_LAST, **options)
    return transformers.AutoModelForCausalLM.from_config(config)


FIRST_AND_LAST = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def next_character(net: Any, batch: Any) -> Tensor:
    return net(input_ids=batch[0], labels=batch[0]).loss  # type: ignore[no-any-return]  # a module gives Any


causal("GPT2", n_embd=64, n_layer=2, n_head=4, n_positions=LENGTH)
causal("Llama", **SMALL, num_key_value_heads=2)
causal("Mistral", **SMALL, num_key_value_heads=2)
causal("Qwen2", **SMALL, num_key_value_heads=2)
causal("Gemma2", **SMALL, num_key_value_heads=2, head_dim=16)
causal("GPTNeoX", **SMALL)
causal("OPT", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=128, word_embed_proj_dim=64)
causal("Mixtral", **SMALL, num_key_value_heads=2, num_local_experts=4)
causal("Mamba", hidden_size=64, num_hidden_layers=2, state_size=8)


# Masked and translating models


def masked(kind: str, **options: Any) -> None:
    def build() -> Training:
        import transformers

        characters, count = data.windows(LENGTH)
        config = getattr(transformers, f"{kind}Config")(vocab_size=count + 1, **FIRST_AND_LAST, **options)
        net = transformers.AutoModelForMaskedLM.from_config(config)

        def loss(model: Any, batch: Any) -> Tensor:
            hidden = torch.rand(batch[0].shape) < 0.15
            given = batch[0].masked_fill(hidden, count)
            return model(input_ids=given, labels=batch[0].masked_fill(~hidden, -100)).loss  # type: ignore[no-any-return]  # a module gives Any

        module = Plain(net, loss, partial(optim.AdamW, lr=5e-4), linear_to_zero)
        return Training(module, loader(characters), options={"gradient_clip_val": 1.0})

    recipe(
        f"transformers: {kind}",
        TRAINER.format("language-modeling/run_mlm.py") + " (from scratch: 5e-4)",
        "transformers",
    )(build)


masked("Bert", **SMALL)
masked("Roberta", **SMALL)
masked("DistilBert", dim=64, n_layers=2, n_heads=4, hidden_dim=128)
masked("Electra", **SMALL, embedding_size=64)


@recipe(
    "transformers: T5", "huggingface.co/docs/transformers model_doc/t5: AdamW 3e-4, span corruption", "transformers"
)
def t5() -> Training:
    import transformers

    characters, count = data.windows(LENGTH)
    config = transformers.T5Config(
        vocab_size=count + 1, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
    )

    def loss(net: Any, batch: Any) -> Tensor:
        hidden = torch.rand(batch[0].shape) < 0.15
        return net(input_ids=batch[0].masked_fill(hidden, count), labels=batch[0]).loss  # type: ignore[no-any-return]  # a module gives Any

    net = transformers.T5ForConditionalGeneration(config)
    return Training(Plain(net, loss, partial(optim.AdamW, lr=3e-4)), loader(characters))


@recipe(
    "transformers: BertForSequenceClassification", TRAINER.format("text-classification/run_glue.py"), "transformers"
)
def classification_of_text() -> Training:
    import transformers

    characters, count = data.windows(LENGTH)
    config = transformers.BertConfig(vocab_size=count, num_labels=2, **SMALL)
    labels = (characters == characters.mode().values.mode().values).sum(1) >= 5

    def loss(net: Any, batch: Any) -> Tensor:
        return net(input_ids=batch[0], labels=batch[1]).loss  # type: ignore[no-any-return]  # a module gives Any

    net = transformers.BertForSequenceClassification(config)
    module = Plain(net, loss, partial(optim.AdamW, lr=5e-5))
    return Training(module, loader(characters, labels.long()), steps=300, options={"gradient_clip_val": 1.0})


@recipe(
    "transformers: ViTMAE", "huggingface/transformers examples/pytorch/image-pretraining/run_mae.py", "transformers"
)
def masked_autoencoder() -> Training:
    import transformers

    config = transformers.ViTMAEConfig(
        **SMALL, image_size=32, patch_size=8, num_channels=1, decoder_hidden_size=32, decoder_num_hidden_layers=1,
        decoder_num_attention_heads=4, decoder_intermediate_size=64, norm_pix_loss=True,
    )  # fmt: skip

    def loss(net: Any, batch: Any) -> Tensor:
        return net(pixel_values=batch[0]).loss  # type: ignore[no-any-return]  # a module gives Any

    adamw = partial(optim.AdamW, lr=1.5e-4, weight_decay=0.05, betas=(0.9, 0.95))
    module = Plain(transformers.ViTMAEForPreTraining(config), loss, adamw, warm_cosine)
    return Training(module, loader(data.digits(32)[0]), falls=False)


@recipe(
    "transformers: Segformer",
    "huggingface.co/docs/transformers tasks/semantic_segmentation: AdamW 6e-5",
    "transformers",
)
def segformer() -> Training:
    import transformers

    config = transformers.SegformerConfig(
        num_channels=1, num_labels=2, depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], decoder_hidden_size=32
    )
    images, _ = data.digits(64)

    def loss(net: Any, batch: Any) -> Tensor:
        return net(pixel_values=batch[0], labels=batch[1]).loss  # type: ignore[no-any-return]  # a module gives Any

    net = transformers.SegformerForSemanticSegmentation(config)
    module = Plain(net, loss, partial(optim.AdamW, lr=6e-5))
    return Training(module, loader(images, (images[:, 0] > 0).long(), size=8), steps=200)


# Adapters, on a small Llama that has learnt the first half of the text


def adapted(name: str, source: str, rate: float, config: str, **options: Any) -> None:
    def build() -> Training:
        import peft  # type: ignore[import-not-found]  # an optional package

        characters, _ = data.windows(LENGTH)
        net = causal_model("Llama", **SMALL, num_key_value_heads=2)
        pretrain(net, characters[: len(characters) // 2])
        wrapped = peft.get_peft_model(net, getattr(peft, config)(task_type="CAUSAL_LM", **options))
        module = Plain(wrapped, next_character, partial(optim.AdamW, lr=rate), linear_to_zero)
        return Training(module, loader(characters[len(characters) // 2 :]), falls=False)

    recipe(f"peft: {name}", source, "peft")(build)


def pretrain(net: nn.Module, characters: Tensor) -> None:
    optimizer = optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(100):
        optimizer.zero_grad()
        next_character(net, [characters[torch.randint(len(characters), (16,))]]).backward()
        optimizer.step()


adapted(
    "LoRA", "huggingface.co/docs/peft quicktour: rank 8, alpha 32, dropout 0.1, rate 1e-3",
    1e-3, "LoraConfig", r=8, lora_alpha=32, lora_dropout=0.1, target_modules=["q_proj", "v_proj"],
)  # fmt: skip
adapted("IA3", "huggingface.co/docs/peft task_guides/ia3: rate 8e-3", 8e-3, "IA3Config")
adapted(
    "prompt tuning", "huggingface.co/docs/peft task_guides/prompt_based_methods: rate 3e-2",
    3e-2, "PromptTuningConfig", num_virtual_tokens=8,
)  # fmt: skip


# torch's examples


class Recurrent(nn.Module):
    """The model of pytorch/examples word_language_model, for characters."""

    def __init__(self, count: int, width: int = 64) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(count, width)
        self.rnn = nn.LSTM(width, width, 2, dropout=0.2)
        self.decoder = nn.Linear(width, count)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, given: Tensor) -> Tensor:
        return self.decoder(self.drop(self.rnn(self.drop(self.encoder(given.t())))[0])).transpose(0, 1)  # type: ignore[no-any-return]  # a module gives Any


def following(net: Any, batch: Any) -> Tensor:
    return F.cross_entropy(net(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())


@recipe("word language model: LSTM", EXAMPLES.format("word_language_model/main.py: SGD 20, clipped at 0.25"))
def language_lstm() -> Training:
    characters, count = data.windows(36)
    module = Plain(Recurrent(count), following, partial(optim.SGD, lr=20.0))
    return Training(module, loader(characters, size=20), options={"gradient_clip_val": 0.25})


class Attending(nn.Module):
    """A transformer as in pytorch/examples word_language_model, or as in nanoGPT."""

    def __init__(self, count: int, norm_first: bool, activation: str, width: int = 64) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, 0.2, activation, batch_first=True, norm_first=norm_first
        )
        self.tokens, self.places = nn.Embedding(count, width), nn.Embedding(64, width)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, count)
        nn.init.uniform_(self.tokens.weight, -0.1, 0.1)
        self.width = width

    def forward(self, given: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(given.shape[1])
        embedded = self.tokens(given) * math.sqrt(self.width) + self.places(torch.arange(given.shape[1]))
        return self.head(self.layers(embedded, mask, is_causal=True))  # type: ignore[no-any-return]  # a module gives Any


@recipe("word language model: Transformer", EXAMPLES.format("word_language_model/main.py: SGD 5, clipped at 0.25"))
def language_transformer() -> Training:
    characters, count = data.windows(36)
    module = Plain(Attending(count, norm_first=False, activation="relu"), following, partial(optim.SGD, lr=5.0))
    return Training(module, loader(characters, size=20), options={"gradient_clip_val": 0.25})


@recipe(
    "nanoGPT", "karpathy/nanoGPT config/train_shakespeare_char.py: AdamW 1e-3, betas 0.9 and 0.99, decay 0.1, clipped"
)
def nano_gpt() -> Training:
    characters, count = data.windows(33)
    adamw = partial(optim.AdamW, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    module = Plain(
        Attending(count, norm_first=True, activation="gelu"), following, adamw, partial(warm_cosine, warm=10)
    )
    return Training(module, loader(characters, size=12), options={"gradient_clip_val": 1.0})


class Makemore(nn.Module):
    """The multilayer perceptron of karpathy/makemore: the characters before, embedded side by side."""

    def __init__(self, count: int, before: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(count, 16)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16 * before, 64), nn.Tanh(), nn.Linear(64, count))

    def forward(self, given: Tensor) -> Tensor:
        return self.layers(self.embedding(given))  # type: ignore[no-any-return]  # a module gives Any


@recipe("makemore", "karpathy/makemore makemore.py: AdamW 5e-4, betas 0.9 and 0.99, decay 0.01")
def makemore() -> Training:
    characters, count = data.windows(9)

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0][:, :-1]), batch[0][:, -1])

    adamw = partial(optim.AdamW, lr=5e-4, weight_decay=0.01, betas=(0.9, 0.99))
    return Training(Plain(Makemore(count), loss, adamw), loader(characters, size=32), steps=500)
