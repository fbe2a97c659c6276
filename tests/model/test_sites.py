"""One table of roles: what signatures accept is what the table says."""

from typing import get_args

from hookboard.callbacks.numbers import ActivationRole, GradientRole
from hookboard.capturing.captured import CaptureRole
from hookboard.capturing.edits import EditRole
from hookboard.model.sites import OF_PARTS, ROLES, Role


def roles(condition):
    return {role for role, traits in ROLES.items() if condition(traits)}


def test_every_role_is_in_the_table():
    assert set(get_args(Role)) == set(ROLES)


def test_the_roles_of_each_signature_are_those_of_the_table():
    assert set(get_args(ActivationRole)) == roles(lambda r: r.kind and not r.is_gradient and not r.of_parameter)
    assert set(get_args(GradientRole)) == roles(lambda r: r.is_gradient)
    assert set(get_args(EditRole)) == set(get_args(CaptureRole)) == roles(lambda r: not r.of_parameter) - {*OF_PARTS}
