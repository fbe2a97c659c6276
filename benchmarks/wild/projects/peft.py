"""peft: LoRA of a ViT as in its guide to image classification: rank 16, query and value, a whole new classifier."""

import peft
import transformers as hf
from benchmarks.recipes import data
from benchmarks.wild.made import HUGGING_FACE

FAULT = ("rate", "learning_rate=5 instead of 5e-3")


def train(run):
    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    model = hf.ViTForImageClassification(
        hf.ViTConfig(image_size=16, patch_size=4, num_channels=1, num_labels=10, **size)
    )
    options = {"r": 16, "lora_alpha": 16, "lora_dropout": 0.1, "bias": "none", "modules_to_save": ["classifier"]}
    model = peft.get_peft_model(model, peft.LoraConfig(target_modules=r".*\.(query|value|q_proj|v_proj)", **options))
    x, y = data.digits(16)
    rows = [{"pixel_values": x[i], "labels": y[i]} for i in range(960)]
    arguments = hf.TrainingArguments(
        "out",
        learning_rate=5.0 if run.faulty else 5e-3,
        per_device_train_batch_size=32,
        num_train_epochs=6,
        label_names=["labels"],
        **HUGGING_FACE,
    )
    hf.Trainer(model, arguments, train_dataset=rows, callbacks=run.hugging_face).train()
