"""What a test of several ranks needs of this torch."""

import pytest
import torch

HAS_FSDP = hasattr(torch.cpu.Stream, "record_event")
needs_fsdp = pytest.mark.skipif(not HAS_FSDP, reason="the FSDP2 of this torch does not run on CPUs")
