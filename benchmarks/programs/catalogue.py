"""All programs by set, and what was left out."""

from benchmarks.programs import autotrainer, held_out, newer, posts
from benchmarks.programs.other_kinds import (
    agents,
    classes,
    generators,
    language,
    pairs,
    scenes,
    sequences,
    updates,
)
from benchmarks.programs.program import ENTERED, Case, Healthy

FILES = {
    "seen": (posts, autotrainer),
    "held_out": (held_out,),
    "newer": (newer,),
    "other_kinds": (agents, generators, sequences, language, pairs, updates, scenes, classes),
}
"""The files of each set. Rules were written with the programs that were `seen`, and since then also for what had been
missed in the others, which are no longer blind."""

SETS: dict[str, list[Case | Healthy]] = {
    name: [known for file in files for known in ENTERED if known.build.__module__ == file.__name__]
    for name, files in FILES.items()
}

LEFT_OUT = {
    "31627380": "no fault: softmax with cross entropy is right, and the fix scores 5 points more",
    "34673164": "no fault: DeepFD's authors measured an accuracy of 1 before the fix",
    "39217567": "the fix takes 256,000 steps, and shows nothing in the 8000 that fit here",
    "41372874": "no fault, as the source says itself",
    "44164749": "no harm: the higher score of the fix is the accuracy of bits, of which nine in ten are 0",
    "44998910": "no harm: an R2 of 0.96 after the post's 20 epochs, on the numbers that its answer made up",
    "45337371": "the targets are random numbers, so that no program can learn them",
    "48251943": "no harm: the source's own loss is higher with the fix",
    "48594888": "no harm on the digits that stand for its photographs: an accuracy of 0.97 with raw pixels",
    "50481178": "no harm: an accuracy of 0.994 before the fix",
    "58609115": "no harm: the higher score of the fix is the accuracy of bits, of which 68 in 69 are 0",
    "59282996": "ten steps, and the fix replaces the labels, so that the scores do not compare",
    "AutoTrainer: Improper_Activation_case": "no harm in torch, whose cross entropy takes a ReLU's outputs as logits",
    "AutoTrainer: DyingReLU, OscillatingLoss": "come and go with the seed, as the source says itself; repairs by SELU"
    " and by batch norm do not learn in the steps that fit here",
    "Averaging_Neural_Networks": "no fault: the mean of two numbers is linear, and so is the program",
    "Traffic-Sign-Classifier, hotdog-sandwich, keras_catsdogs, kerasma, DDOS-ML-Detection, MovieReviews_Keras,"
    " kaggle-melbourne_properties": "a change of architecture or regularization, not a fault",
    "keras-super-resolution": "3000 epochs in place of 50; needs its photographs",
    "56380303": "fault and fix do not differ, as the authors of BenchDL4Real measured in 20 runs of each",
    "33641799": "the fix diverges on the digits as well",
    "33712178, 33699174, 39487825": "the logarithm of a softmax that comes to 0 after thousands of steps on MNIST",
    "35078027": "the fix hardly learns on the digits: an accuracy of 0.2",
    "39939881": "the same fault as 43636736",
    "42821125, 42191656": "only the evaluation is wrong",
    "60335387": "no harm on the digits: an accuracy of 0.99 after 2500 steps without zero_grad",
    "forum 50048": "no harm: an accuracy of 0.95 before the fix",
    "forum 12099, 18833, 42224, 130518": "the same faults as forum 29507 and 102879",
    "arcface-pytorch 91": "no harm: the clamp of today's torch passes no gradient at its ends, and so no NaN",
    "PerceptualSimilarity 69": "no harm: the ReLU before the norm takes the NaN away",
    "NTS-Net 14": "no harm: a dropout that stays on in evaluation costs 0.05 to 0.07 on the digits",
    "KEQA_WSDM19 2": "no harm: a softmax over a single weight leaves the mean of an LSTM, which learns as well",
    "Speech-Separation 4": "no harm, as the source says itself",
    "deeplab-pytorch 44": "no fault: ones are written twice, and the bias is 0 anyway",
    "pytorch-i3d 58": "no harm: the share that is kept by default is one half, as the share that is dropped",
    "forum 160720, fast.ai 58206": "the same fault as forum 50431",
    "forum 61598": "the same fault as pytorch 1538",
    "transformers 48745": "the same fault as tutorials 2478",
    "llama-from-scratch 5, Deep-learning-activity-recognition 10": "the same fault as federated-learning 9",
    "pytorch-lightning 4862": "the same fault as tutorials 1644",
    "forum 159152, 168718, 175731, 184454": "no answer in the copies at hand",
    "forum 38511": "the loss is computed once, before the loop, which a training step cannot do",
    "DeepFD's other rows 33 to 49": "the list has a patch for each, without the program",
}
"""What the repositories have besides, and why it is not here."""
