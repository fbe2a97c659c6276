"""What cannot work is said before the first batch, with what would."""

import pytest
from toys import Toy, batches, fit, mlp

from hookboard import ActivationLogger, CAMLogger, GradientLogger, Intervention, ParameterLogger, Zero


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (ActivationLogger, {"statistics": ["mean", "zero_fractoin"]}, "'zero_fractoin'; did you mean 'zero_fraction'"),
        (ParameterLogger, {"statistics": "update_norms"}, "'update_norms'; did you mean 'update_norm'"),
        (ActivationLogger, {"statistics": "update_norm"}, "only ParameterLogger measures 'update_norm'"),
        (ActivationLogger, {"roles": "outputs"}, "unknown role 'outputs'; did you mean 'output'.*Valid: output, input"),
        (ActivationLogger, {"roles": ["grad_output"]}, "unknown role 'grad_output'"),
        (GradientLogger, {"roles": []}, r"roles=\[\]: pass one or more of grad_output, grad_input"),
        (ActivationLogger, {"stages": ["train", "validation"]}, "'validation'; did you mean 'validate'.*Valid: train"),
        (CAMLogger, {"method": "gradcam"}, "unknown method 'gradcam'; did you mean 'grad_cam'"),
        (CAMLogger, {"stage": "train"}, "unknown stage 'train'. Valid: validate, test, predict"),
        (CAMLogger, {"mean": [0.5]}, "mean=.0.5., std=None: pass both"),
        (
            Intervention,
            {"rule": Zero(), "role": "grad_input", "stages": "test"},
            "only the stage 'train' has gradients",
        ),
        (Intervention, {"rule": Zero(), "first_step": 3, "last_step": 2}, "first_step=3, last_step=2"),
    ],
)
def test_what_means_nothing_is_refused_with_what_was_likely_meant(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize("make", [ActivationLogger, GradientLogger, ParameterLogger])
def test_a_pattern_that_matches_nothing_is_an_error_before_the_first_batch(make):
    class Watches(Toy):
        def training_step(self, batch):
            raise AssertionError("a batch has begun")

    with pytest.raises(
        ValueError, match=rf"^{make.__name__}: modules: unknown module 'nett\.0'; did you mean 'net\.0'"
    ):
        fit(None, Watches(mlp()), batches(4), make(modules=["net.*", "nett.0"]))
