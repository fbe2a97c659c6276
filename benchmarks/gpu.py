"""What measuring costs on a GPU: the kernel against one read, and a due step against a bare one.

Run: python benchmarks/gpu.py
It has not run on any GPU yet. It prints Markdown, with the name of the card.
"""

import time
from collections.abc import Callable

import torch
import torchvision
from torch import Tensor, nn

from hookboard.measure import BINS, measure, measure_channels, plan
from hookboard.recording import Recorder
from hookboard.sites import Site

DEFAULT = plan(["mean", "std", "abs_max", "zero_fraction", "nonfinite_count"])


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The shortest time of a run, by the GPU's clock."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return min(times)


def kernels() -> None:
    print("| values | dtype | x.sum() ms | row ms | with bins ms | with channels ms | row GB/s |")
    print("|---|---|---|---|---|---|---|")
    counts = torch.zeros(BINS, dtype=torch.long, device="cuda")
    for size in (10**5, 10**6, 10**7, 10**8):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(size // 1000, 1000, device="cuda").to(dtype)
            times = [
                seconds(x.sum, 20),
                seconds(lambda x=x: measure(x, DEFAULT), 20),
                seconds(lambda x=x: measure(x, DEFAULT, counts=counts), 20),
                seconds(lambda x=x: measure_channels(x, 1, DEFAULT), 20),
            ]
            shown = " | ".join(f"{1000 * each:.3f}" for each in times)
            print(f"| {size:.0e} | {dtype} | {shown} | {x.nbytes / times[1] / 1e9:.0f} |")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.gelu, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (12, -1)).transpose(1, 2) for each in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


def gpt(width: int = 768) -> nn.Module:
    blocks = [Block(width) for _ in range(12)]
    return nn.Sequential(nn.Embedding(50257, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 50257, bias=False))


def steps(name: str, model: nn.Module, batch: Tensor) -> None:
    """A due step against a bare one, with hooks on all leaf modules, and what waits in it."""
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    recorder = Recorder(DEFAULT, torch.device("cuda"))
    is_due = False

    def watched(site: Site, gradient: Site) -> Callable[..., None]:
        def hook(module: nn.Module, args: object, output: object) -> None:
            if is_due and isinstance(output, Tensor):
                recorder.open(site)(output)
                if output.requires_grad:
                    output.register_hook(recorder.open(gradient))

        return hook

    for path, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(watched(Site(path, "output"), Site(path, "grad_output")))

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def timed(due: bool) -> float:
        nonlocal is_due
        is_due = due
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            step()
            if due:
                recorder.flush()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / 10

    timed(False), timed(True)
    pairs = [(timed(False), timed(True)) for _ in range(5)]
    ratio = sorted(due / bare for bare, due in pairs)[2]
    is_due = True
    torch.cuda.set_sync_debug_mode("error")  # it raises where the host waits, before the flush
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    recorder.flush()
    print(f"| {name} | {1000 * pairs[2][0]:.1f} | {ratio:.3f} | none before the flush |")


def main() -> None:
    if not torch.cuda.is_available():
        print("no CUDA device: there is nothing to measure here")
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    kernels()
    print("\n| model, bf16-mixed | bare ms | due / bare | waits |\n|---|---|---|---|")
    steps("ResNet-50, 64 x 224 x 224", torchvision.models.resnet50(), torch.randn(64, 3, 224, 224, device="cuda"))
    steps("GPT-2, 8 x 1024", gpt(), torch.randint(50257, (8, 1024), device="cuda"))


if __name__ == "__main__":
    main()
