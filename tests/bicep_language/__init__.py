"""Bicep without its compiler: parsed, evaluated, and deployed on paper.

    read    text -> `Template`: declarations with expression trees (parser, nodes)
    expand  `Template` and parameters -> the resources that Resource Manager would be asked for, in order (deployment)

It knows the part of the language that infra/ uses, and says so at what it does not know. What it accepts may still be
refused by the compiler; what it refuses is wrong. The grammar is checked a second time, by pycep.
"""

from tests.bicep_language.deployment import Deployment, Placed, Skipped, expand
from tests.bicep_language.nodes import Template
from tests.bicep_language.parser import BicepSyntaxError, read

__all__ = ["BicepSyntaxError", "Deployment", "Placed", "Skipped", "Template", "expand", "read"]
