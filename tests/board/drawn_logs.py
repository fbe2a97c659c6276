"""A run with a histogram and pictures, as the loggers write them."""

import io

from board.logs import histogram, picture, scalars, write
from PIL import Image

EDGES = [-1.0, 0.0, 1.0, 2.0, 4.0]

COUNTS = {0: [0, 6, 2, 0], 10: [2, 2, 2, 2], 20: [0, 0, 0, 8]}
"""Step to what was counted between the edges."""

WIDTHS = {0: 4, 20: 6}
"""Step to the width of the picture, which tells the two apart."""


def write_drawn(folder, names):
    """A run with the scalars of these layers, and all there can be of the first; of `net.1`, also the validation's."""
    tags = [f"{kind}_std/{name}" for kind in ("activation", "gradient") for name in names]
    events = [scalars(step, dict.fromkeys([*tags, f"activation_mean/{names[0]}"], 1.0 + step)) for step in COUNTS]
    events += [scalars(20, {f"validate_activation_std/{name}": 7.0}) for name in names if name == "net.1"]
    events += [histogram(step, f"activations/{names[0]}", EDGES, counts) for step, counts in COUNTS.items()]
    events += [picture(step, f"feature_maps/{names[0]}", png(width)) for step, width in WIDTHS.items()]
    write(folder, sorted(events, key=lambda event: event.step))


def png(width):
    made = io.BytesIO()
    Image.new("RGB", (width, 3), "red").save(made, "png")
    return made.getvalue()
