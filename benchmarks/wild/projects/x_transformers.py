"""x-transformers: its examples/enwik8_simple, with a smaller text and model: Adam, clipped to 0.5, 4 batches a step."""

import torch
from benchmarks.recipes import data
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

FAULT = ("rate", "lr=1 instead of 1e-3")


def train(run):
    pieces, count = data.windows(65)
    layers = Decoder(dim=64, depth=2, heads=4, rotary_pos_emb=True)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=count, max_seq_len=64, attn_layers=layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0 if run.faulty else 1e-3)
    batches = [torch.randint(len(pieces), (4,)) for _ in range(4 * 120)]
    with run.loop(model, optimizer) as steps:
        for i, rows in enumerate(batches):
            last = i % 4 == 3
            with steps.step(pieces[rows], accumulates=not last):
                loss = model(pieces[rows])
                (loss / 4).backward()
                if last:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    optimizer.zero_grad()
            run.loss(loss)
