"""transformers: its Trainer: Wav2Vec2 hears tones, PatchTST goes on with waves, T5 sorts, ViTMAE fills in digits."""

import torch
import transformers as hf
from benchmarks.recipes import data
from benchmarks.wild.made import HUGGING_FACE

FAULT = ("rate", "learning_rate=1 instead of 1e-3 in Wav2Vec2")
VARIANTS = ("Wav2Vec2", "PatchTST", "T5", "ViTMAE")


def wav2vec2():
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    sound = {"conv_dim": (32, 32, 32), "conv_kernel": (10, 3, 3), "conv_stride": (5, 4, 4), "mask_time_prob": 0.0}
    config = hf.Wav2Vec2Config(**size, **sound, num_conv_pos_embeddings=16, num_labels=4, classifier_proj_size=32)
    y, t = torch.randint(4, (320,)), torch.arange(1600) / 8000
    x = torch.sin(6.283 * (200 + 150 * y[:, None]) * t + 6 * torch.rand(320, 1)) + 0.3 * torch.randn(320, 1600)
    return hf.Wav2Vec2ForSequenceClassification(config), {"input_values": x, "labels": y}


def patchtst():
    size = {"d_model": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64, "patch_length": 8}
    config = hf.PatchTSTConfig(context_length=64, prediction_length=16, num_input_channels=1, patch_stride=8, **size)
    waves = torch.sin(torch.arange(80) / 3 + 6.283 * torch.rand(320, 1)) * (1 + torch.rand(320, 1))
    waves = (waves + 0.1 * torch.randn(320, 80))[..., None]
    return hf.PatchTSTForPrediction(config), {"past_values": waves[:, :64], "future_values": waves[:, 64:]}


def t5():
    config = hf.T5Config(
        vocab_size=12, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    digits = torch.randint(1, 9, (320, 8))
    return hf.T5ForConditionalGeneration(config), {"input_ids": digits, "labels": digits.sort(dim=1).values + 1}


def vitmae():
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    small = {f"decoder_{name}": value for name, value in size.items()}
    config = hf.ViTMAEConfig(image_size=16, patch_size=4, num_channels=1, **size, **small)
    return hf.ViTMAEForPreTraining(config), {"pixel_values": data.digits(16)[0][:320]}


def train(run):
    model, columns = {"Wav2Vec2": wav2vec2, "PatchTST": patchtst, "T5": t5, "ViTMAE": vitmae}[run.variant]()
    rows = [{name: column[i] for name, column in columns.items()} for i in range(320)]
    rate = {"learning_rate": 1.0 if run.faulty else 1e-3, "per_device_train_batch_size": 16, "num_train_epochs": 6}
    hf.Trainer(
        model, hf.TrainingArguments("out", **rate, **HUGGING_FACE), train_dataset=rows, callbacks=run.hugging_face
    ).train()
