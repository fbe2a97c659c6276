"""The projects: what pip installs for each, and what it is."""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECTS_FOLDER = Path(__file__).parent / "projects"


@dataclass(frozen=True)
class Project:
    """A project of others that trains by itself.

    Args:
        name: of its script in `projects`.
        needs: what pip installs, each with its version.
        field: what it is for.
    """

    name: str
    needs: tuple[str, ...]
    field: str

    @property
    def script(self) -> Path:
        return PROJECTS_FOLDER / f"{self.name}.py"

    def said(self, constant: str, otherwise: Any = None) -> Any:
        """Return a constant of its script, which is not run: only its own environment can."""
        for node in ast.parse(self.script.read_text()).body:
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == constant for t in node.targets):
                return ast.literal_eval(node.value)
        return otherwise

    @property
    def variants(self) -> tuple[str, ...]:
        """The names of its trainings; ("",) if there is one only."""
        return tuple(self.said("VARIANTS", ("",)))


def _project(name: str, field: str, *needs: str) -> Project:
    return Project(name, needs, field)


PROJECTS = (
    # Lightning's Trainer
    _project("anomalib", "defects in pictures", "anomalib==2.7.0"),
    _project("asteroid", "separation of speakers", "asteroid==0.5.1"),
    _project("careamics", "denoising of microscopy", "careamics==0.0.4.2", "setuptools==80.9.0"),
    _project("chemprop", "properties of molecules", "chemprop==2.3.1"),
    _project("coral_pytorch", "ordinal regression", "coral-pytorch==1.4.0"),
    _project("darts", "forecasting", "darts==0.41.0"),
    _project("gluonts", "forecasting", "gluonts[torch]==0.17.0"),
    _project("lightning_uq_box", "uncertainty", "lightning-uq-box==0.2.0", "timm==1.0.31"),
    _project("lightning_demos", "language models", "lightning==2.6.6"),
    _project("lightly", "self-supervised pictures", "lightly==1.6.0"),
    _project("matgl", "crystals", "matgl==4.1.2"),
    _project("mlcolvar", "collective variables of molecules", "mlcolvar==1.3.1"),
    _project("monai", "medical pictures in 3D", "monai==1.6.1"),
    _project("ncps", "liquid networks", "ncps==1.0.1"),
    _project("neuralforecast", "forecasting", "neuralforecast==3.3.0"),
    _project("pina", "physics-informed networks", "pina-mathlab==0.3.2"),
    _project("pytorch_forecasting", "forecasting", "pytorch-forecasting==1.8.0"),
    _project("pytorch_metric_learning", "metric learning", "pytorch-metric-learning==2.9.0"),
    _project("pytorch_tabular", "tables", "pytorch-tabular==1.2.0"),
    _project("rl4co", "routing by reinforcement", "rl4co==0.7.0"),
    _project("schnetpack", "forces between atoms", "schnetpack==2.0.3"),
    _project("scvi", "gene counts of cells", "scvi-tools==1.4.2"),
    _project("segmentation_models", "segmentation", "segmentation-models-pytorch==0.6.0"),
    _project("torch_uncertainty", "uncertainty", "torch-uncertainty==0.13.0", "timm==1.0.31"),
    _project("torchdyn", "neural differential equations", "torchdyn==1.0.6"),
    _project("torchgeo", "pictures from satellites", "torchgeo==0.8.1"),
    _project("torchphysics", "physics-informed networks", "torchphysics==1.1.2"),
    _project("rectools", "recommendation", "rectools[lightning]==0.19.0"),
    # Hugging Face's Trainer
    _project("transformers", "sound, series, sequences, pictures", "transformers==5.24.0"),
    _project("peft", "adapters", "peft==0.21.2"),
    _project("sentence_transformers", "embeddings of sentences", "sentence-transformers==6.2.0", "datasets==5.2.0"),
    _project("setfit", "classification by few examples", "setfit==1.2.0"),
    _project("trl", "tuning of language models", "trl==1.16.0"),
    # loops of their own
    _project("braindecode", "brain signals", "braindecode==1.8.1"),
    _project("cebra", "embeddings of neurons", "cebra==0.6.1"),
    _project("deepctr_torch", "clicks", "deepctr-torch==0.3.0"),
    _project("deepxde", "physics-informed networks", "deepxde==1.15.0"),
    _project("diffusers", "diffusion of pictures", "diffusers==0.42.1"),
    _project("e3nn", "equivariant networks", "e3nn==0.6.0"),
    _project("fastai", "tables", "fastai==2.8.12"),
    _project("gpytorch", "Gaussian processes", "gpytorch==1.15.2"),
    _project("ignite", "classification", "pytorch-ignite==0.5.5"),
    _project("neuralop", "flows, by operators", "neuraloperator==2.0.0"),
    _project("kan", "Kolmogorov-Arnold networks", "pykan==0.2.8"),
    _project("normflows", "normalizing flows", "normflows==1.7.3"),
    _project("opacus", "differential privacy", "opacus==1.6.0"),
    _project("open_clip", "pictures and captions", "open-clip-torch==3.3.0"),
    _project("pennylane", "quantum circuits", "pennylane==0.45.1"),
    _project("pycox", "survival", "pycox==0.3.0"),
    _project("pykeen", "knowledge graphs", "pykeen==1.11.1"),
    _project("pypots", "gaps in series", "pypots==1.5"),
    _project("pyod", "outliers", "pyod==3.6.7"),
    _project("pyro", "probabilistic programs", "pyro-ppl==1.9.2"),
    _project("pytorch_frame", "tables", "pytorch-frame==0.3.0"),
    _project("pytorch_tabnet", "tables", "pytorch-tabnet==4.1.0"),
    _project("rtdl_revisiting_models", "tables", "rtdl_revisiting_models==0.0.2"),
    _project("sbi", "inference from simulations", "sbi==0.27.0"),
    _project("skorch", "classification", "skorch==1.4.0"),
    _project("siren_pytorch", "implicit representations", "siren-pytorch==0.1.7"),
    _project("snntorch", "spiking networks", "snntorch==1.0.0"),
    _project("speechbrain", "speech", "speechbrain==1.1.2"),
    _project("spikingjelly", "spiking networks", "spikingjelly==2.0.0"),
    _project("tabm", "tables", "tabm==0.0.3"),
    _project("torch_geometric", "graphs", "torch-geometric==2.8.1"),
    _project("torchani", "potentials of molecules", "torchani==2.7.1"),
    _project("torchcde", "irregular series", "torchcde==0.2.5"),
    _project("torchcfm", "flow matching", "torchcfm==1.0.7"),
    _project("torchsde", "stochastic differential equations", "torchsde==0.2.6"),
    _project("torchrl", "reinforcement learning", "torchrl==0.14.1", "gymnasium==1.4.0"),
    _project("torchsurv", "survival", "torchsurv==0.2.0"),
    _project("vector_quantize_pytorch", "quantized autoencoders", "vector-quantize-pytorch==1.32.0"),
    _project("widedeep", "tables", "pytorch-widedeep==1.7.0"),
    _project("x_transformers", "language models", "x-transformers==2.31.10"),
    _project("zuko", "normalizing flows", "zuko==1.6.0"),
    _project("denoising_diffusion_pytorch", "diffusion of pictures and series", "denoising-diffusion-pytorch==2.3.4"),
    _project("higher", "meta-learning", "higher==0.2.1"),
    _project("nflows", "normalizing flows", "nflows==0.14"),
    _project("schedulefree", "classification", "schedulefree==1.4.1"),
    _project("timm", "classification", "timm==1.0.31"),
    _project("torchcrf", "tagging of tokens", "pytorch-crf==0.7.2"),
    _project("torchdiffeq", "neural differential equations", "torchdiffeq==0.2.5"),
    _project("vit_pytorch", "transformers of pictures", "vit-pytorch==1.26.14", "lion-pytorch==0.2.5"),
)
"""Versions as first tried on 2026-11-29."""
