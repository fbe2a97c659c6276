"""A small transformer is ported to code of one's own, with two mistakes that `compare` finds. It takes a few seconds.

python examples/port.py
"""

import re

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from hookboard import Comparison, compare

SIZE, HEADS, WORDS, LENGTH = 32, 4, 50, 12


class Original(nn.Module):
    """The model whose weights there are: attention and norms are those of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, SIZE)
        self.layers = nn.ModuleList(OriginalLayer() for _ in range(3))
        self.final_norm = nn.LayerNorm(SIZE)
        self.lm_head = nn.Linear(SIZE, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.final_norm(x))


class OriginalLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_norm = nn.LayerNorm(SIZE, eps=1e-6)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(SIZE, SIZE) for _ in range(4))
        self.mlp_norm = nn.LayerNorm(SIZE, eps=1e-6)
        self.fc1, self.act, self.fc2 = nn.Linear(SIZE, 4 * SIZE), nn.GELU(), nn.Linear(4 * SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        y = self.input_norm(x)
        q, k, v = (
            part(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(mixed.transpose(1, 2).flatten(2))
        return x + self.fc2(self.act(self.fc1(self.mlp_norm(x))))


class Port(nn.Module):
    """The port: other names, and attention written out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, SIZE)
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))
        self.norm = nn.LayerNorm(SIZE)
        self.head = nn.Linear(SIZE, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.words(words))))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(SIZE, eps=1e-6)
        self.q, self.k, self.v, self.out = (nn.Linear(SIZE, SIZE) for _ in range(4))
        self.norm2 = nn.LayerNorm(SIZE, eps=1e-6)
        self.up, self.act, self.down = nn.Linear(SIZE, 4 * SIZE), nn.GELU("tanh"), nn.Linear(4 * SIZE, SIZE)  # mistake
        self.scale = SIZE**-0.5  # mistake: it is the size of a head that counts

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (part(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (self.scale * q @ k.transpose(-2, -1)).masked_fill(later, float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.down(self.act(self.up(self.norm2(x))))


NAMES = {
    # The original's name -> the port's. It serves for the weights and for `compare`.
    "embed": "words",
    "layers.*.input_norm": "blocks.*.norm1",
    "layers.*.q_proj": "blocks.*.q",
    "layers.*.k_proj": "blocks.*.k",
    "layers.*.v_proj": "blocks.*.v",
    "layers.*.o_proj": "blocks.*.out",
    "layers.*.mlp_norm": "blocks.*.norm2",
    "layers.*.fc1": "blocks.*.up",
    "layers.*.act": "blocks.*.act",
    "layers.*.fc2": "blocks.*.down",
    "layers.*": "blocks.*",
    "final_norm": "norm",
    "lm_head": "head",
}


def ported_weights(original: nn.Module) -> dict[str, Tensor]:
    """Return the weights of the original under the names of the port."""
    weights = {}
    for name, tensor in original.state_dict().items():
        for pattern, own in NAMES.items():
            found = re.fullmatch(re.escape(pattern).replace(r"\*", r"(\d+)") + r"\.(\w+)", name)
            if found:
                *number, part = found.groups()
                weights[f"{own.replace('*', *number) if number else own}.{part}"] = tensor
                break
    return weights


def main() -> tuple[Comparison, Comparison]:
    torch.manual_seed(0)
    original, port = Original().eval(), Port().eval()
    port.load_state_dict(ported_weights(original))
    words = torch.randint(0, WORDS, (2, LENGTH))
    with torch.no_grad():
        print(f"The logits differ by up to {(original(words) - port(words)).abs().max():.2g}. Where from?\n")

    found = compare(original, port, words, names=NAMES)
    print(found)

    for block in port.blocks:
        block.act, block.scale = nn.GELU(), (SIZE // HEADS) ** -0.5
    print("\nWith both mistakes mended, and with the port in bfloat16:\n")
    mended = compare(original, port.bfloat16(), words, names=NAMES)
    print(mended)
    return found, mended


if __name__ == "__main__":
    main()
